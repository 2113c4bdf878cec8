"""A stand-in for the Hugging Face Hub on the loopback interface: it takes commits and gives their files back."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories by name, each a dictionary of files.

    Attributes:
        files: By repository, then by path.
        url: Where it answers.
    """

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._answer(*hub.post(urlsplit(self.path).path, body))

            def do_GET(self) -> None:
                self._answer(*hub.get(unquote(urlsplit(self.path).path)))

            def do_HEAD(self) -> None:
                self.do_GET()

            def _answer(self, code: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(code)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def post(self, path: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Answer what creates a repository, asks how files are uploaded, or commits them."""
        if path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given.get('organization') or 'me'}/{given['name']}"
            self.files.setdefault(name, {})
            return self._json({"url": f"{self.url}/{name}", "id": name, "name": name})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        name, action = self._split(path, "/api/models/")
        if action.startswith("preupload/"):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
            return self._json({"files": files, "commitOid": "0" * 40})
        if action.startswith("commit/"):
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.files[name][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            url = f"{self.url}/{name}/commit/{self._revision(name)}"
            return self._json({"success": True, "commitOid": self._revision(name), "commitUrl": url})
        return self._json({"error": path}, 404)

    def get(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Answer what asks for a list of files, or for one."""
        if path.startswith("/api/models/"):
            name, action = self._split(path, "/api/models/")
            if name not in self.files:
                return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
            if action.startswith("tree/"):
                tree = [
                    {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for file, content in self.files[name].items()
                ]
                return self._json(tree)
            siblings = [{"rfilename": file} for file in self.files[name]]
            return self._json({"id": name, "sha": self._revision(name), "siblings": siblings, "private": False})
        name, action = self._split(path, "/")
        file = action.removeprefix("resolve/").partition("/")[2]
        content = self.files.get(name, {}).get(file)
        if content is None:
            return 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self._revision(name)}
        tag = f'"{hashlib.sha1(content).hexdigest()}"'
        return 200, content, {"ETag": tag, "X-Repo-Commit": self._revision(name)}

    def _revision(self, name: str) -> str:
        return hashlib.sha1(repr(sorted(self.files.get(name, {}).items())).encode()).hexdigest()

    @staticmethod
    def _split(path: str, prefix: str) -> tuple[str, str]:
        owner, name, *rest = path.removeprefix(prefix).split("/", 2)
        return f"{owner}/{name}", rest[0] if rest else ""

    @staticmethod
    def _json(value: object, code: int = 200) -> tuple[int, bytes, dict[str, str]]:
        return code, json.dumps(value).encode(), {"Content-Type": "application/json"}
