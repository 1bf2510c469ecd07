"""An index over HTTP: the API, the page, and the client. The extra `[server]`; the client alone needs nothing more."""
