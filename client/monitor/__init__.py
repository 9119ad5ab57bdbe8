"""What `lumigrad top` shows: metrics of workers, compared from look to look, as pages of a terminal."""
