"""What every part of the client uses: arrays, arguments, optional packages."""
