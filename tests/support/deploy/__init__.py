"""Tools of deployment, and stand-ins for what they talk to."""
