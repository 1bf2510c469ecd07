"""Start a server on a free port, search and change the index through the client. Needs the extra [server]."""

import json
import os
import secrets
import subprocess
import sys
import tempfile

import citadel


def main(folder: str) -> None:
    with citadel.Index.create(folder, model="bm25", overwrite=True) as index:
        index.add([{"id": "d1", "text": "Einstein proposed relativity."}])
        index.commit()
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "citadel.cli", "serve", folder, "--port", "0"]
    environment = {**os.environ, "CITADEL_WRITE_TOKEN": token}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = next(line["url"] for line in map(json.loads, server.stderr) if "url" in line)
        client = citadel.Client(url, token=token)
        client.add([{"id": "d2", "text": "Darwin proposed evolution."}])
        client.commit()
        print([hit.id for hit in client.search("who proposed evolution", k=1)])
        server.terminate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(f"{scratch}/idx")
