"""An index over HTTP: API, page and client. The server needs the extra `[server]`, the client does not."""
