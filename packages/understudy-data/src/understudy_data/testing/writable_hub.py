"""A Hugging Face hub on this machine that repositories can be published to: commits, large files,
tags, downloads.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_secretSecretSecret"


@dataclass
class Repo:
    """A repository: the files of each commit, the tags, and whether it is private."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    main: str = ""
    tags: dict[str, str] = field(default_factory=dict)

    def files(self, revision: str) -> dict[str, bytes]:
        return self.commits[self.commit(revision)]

    def commit(self, revision: str) -> str:
        return self.main if revision == "main" else self.tags.get(revision, revision)

    def add(self, files: Mapping[str, bytes | None]) -> None:
        """Add a commit with these files; None removes one."""
        after = self.commits.get(self.main, {}) | files
        self.main = f"{len(self.commits) + 1:040x}"
        self.commits[self.main] = {
            path: content for path, content in after.items() if content is not None
        }


class WritableHub:
    """Repositories by kind and name ("models/me/policy"). Every call needs `TOKEN`.

    Attributes:
        large: large files by SHA-256, as uploaded.
        broken: downloads of paths that contain this text fail; "" for none.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.broken = ""
        self.downloads: list[str] = []
        self.url = ""

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/repos/create":
            asked = json.loads(body)
            kind = asked.get("type") or "model"
            owner = f"{asked['organization']}/" if asked.get("organization") else ""
            name = f"{kind}s/{owner}{asked['name']}"
            if name in self.repos:
                return 409, {"url": f"{self.url}/{name.removeprefix('models/')}"}
            self.repos[name] = Repo(
                private=bool(asked.get("private")) or asked.get("visibility") == "private"
            )
            self.repos[name].add({".gitattributes": b""})
            return 200, {"url": f"{self.url}/{name.removeprefix('models/')}"}
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            return 200, {
                "transfer": "basic",
                "objects": [
                    one | {"actions": {"upload": {"href": f"{self.url}/put/{one['oid']}"}}}
                    for one in objects
                ],
            }
        if path == "/api/validate-yaml":  # of a README.md
            return 200, {"errors": [], "warnings": []}
        repo, what, rest = self.find(path)
        if what == "preupload":
            modes = []
            for file in json.loads(body)["files"]:
                mode = "lfs" if file["path"].endswith(".safetensors") else "regular"
                modes.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
            return 200, {"files": modes}
        if what == "commit":
            lines = [json.loads(line) for line in body.splitlines()]
            added: dict[str, bytes | None] = {}
            for line in lines:
                value = line["value"]
                if line["key"] == "deletedFile":
                    added[value["path"]] = None
                elif line["key"] == "file":
                    added[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    added[value["path"]] = self.large[value["oid"]]
            repo.add(added)
            return 200, {
                "commitUrl": f"{self.url}/me/x/commit/{repo.main}",
                "commitOid": repo.main,
                "success": True,
            }
        assert what == "tag", path
        repo.tags[json.loads(body)["tag"]] = rest
        return 200, {}

    def find(self, path: str) -> tuple[Repo, str, str]:
        """Repository, request and the rest of a path below /api."""
        kind, owner, name, *rest = path.removeprefix("/api/").split("/")
        what = rest[0] if rest else ""
        return self.repos[f"{kind}/{owner}/{name}"], what, "/".join(rest[1:])

    def get(self, path: str) -> tuple[int, Any, str]:
        """Status, answer (bytes of a file, or JSON) and commit."""
        if not path.startswith("/api/"):
            at = path if path.startswith("/datasets/") else f"/models{path}"
            kind, owner, name, _, revision, *inside = at.strip("/").split("/")
            repo = self.repos[f"{kind}/{owner}/{name}"]
            file = "/".join(inside)
            if self.broken and self.broken in file:
                return 403, {}, ""
            content = repo.files(revision).get(file)
            return (404, {}, "") if content is None else (200, content, repo.commit(revision))
        repo, what, rest = self.find(path)
        if what == "refs":
            tags = [
                {"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": at}
                for tag, at in repo.tags.items()
            ]
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": repo.main}
            return 200, {"branches": [main], "converts": [], "tags": tags}, ""
        if what == "tree":
            return 200, self._tree(repo.files(rest.partition("/")[0]), rest.partition("/")[2]), ""
        commit = repo.commit(rest or "main")
        if commit not in repo.commits:
            return 404, {}, "RevisionNotFound"
        siblings = [{"rfilename": name} for name in repo.commits[commit]]
        return 200, {"id": "/".join(path.split("/")[3:5]), "sha": commit, "siblings": siblings}, ""

    @staticmethod
    def _tree(files: dict[str, bytes], folder: str) -> list[dict[str, Any]]:
        inside = {
            path: data
            for path, data in files.items()
            if not folder or path.startswith(folder + "/")
        }
        return [
            {"type": "file", "path": p, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
            for p, d in inside.items()
        ]


def _handler(hub: WritableHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _send(self, status: int, answer: Any, commit: str = "") -> None:
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            if commit:
                header = "X-Error-Code" if status == 404 else "X-Repo-Commit"
                self.send_header(header, commit)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _allowed(self) -> bool:
            return self.headers.get("authorization") == f"Bearer {TOKEN}"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if self.command == "GET" and not path.startswith("/api/"):
                hub.downloads.append(path)
            try:
                found = hub.get(path) if self._allowed() else (401, {}, "")
            except KeyError:
                found = 404, {}, "RepoNotFound"
            self._send(*found)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = unquote(urlsplit(self.path).path)
            answer = hub.post(path, body) if self._allowed() else (401, {})
            self._send(*answer)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert hashlib.sha256(body).hexdigest() == self.path.rpartition("/")[2]
            hub.large[self.path.rpartition("/")[2]] = body
            self._send(200, {})

        def do_DELETE(self) -> None:
            repo, _, tag = hub.find(unquote(urlsplit(self.path).path))
            del repo.tags[tag]
            self._send(200, {})

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serve_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[WritableHub]:
    """Serve a hub without repositories, and let huggingface_hub use it with `TOKEN`."""
    from huggingface_hub import constants

    hub = WritableHub()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub)) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub
        server.shutdown()
