"""Parts of `Forecast`: its rows for a server."""
