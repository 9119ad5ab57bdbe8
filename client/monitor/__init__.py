"""The pages of `lumigrad top`: metrics of workers, and their changes between polls."""
