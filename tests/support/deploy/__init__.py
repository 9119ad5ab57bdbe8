"""Tools of deployment, and stand-ins for the services that they call."""
