"""The answers of a Hugging Face hub that reading a dataset needs, on top of `RangeServer`."""

import json
from collections.abc import Mapping
from typing import Any

from understudy_data.testing.servers import Asked, RangeServer

REPO = "me/set"


class HubServer(RangeServer):
    """One dataset repository, `datasets/me/set`, private if there is a `token`. Its files also are
    those of a model repository `me/set`, for `hf download`.

    `commits` has the files of each commit by path in the repository, and `main` names the current
    one. As on the hub, files are redirected to another address.
    """

    def __init__(self, files: Mapping[str, bytes], token: str = "") -> None:
        super().__init__({})
        self.token = token
        self.commits: dict[str, Mapping[str, bytes]] = {}
        self.push(files)
        self.answer = self._answer

    def push(self, files: Mapping[str, bytes]) -> None:
        """Add a commit and point `main` to it."""
        self.main = f"{len(self.commits) + 1:040x}"
        self.commits[self.main] = files
        assert isinstance(self.files, dict)
        self.files.update({f"/cdn/{self.main}/{path}": data for path, data in files.items()})

    def _answer(self, asked: Asked) -> tuple[int, dict[str, str], bytes] | None:
        if asked.path.startswith("/cdn/"):
            assert "authorization" not in asked.headers or not self.token, (
                "the token went to another host"
            )
            return None
        if self.token and asked.headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"X-Error-Code": "GatedRepo"}, b"{}"
        api = f"/api/datasets/{REPO}"
        resolve = f"/datasets/{REPO}/resolve/"
        if asked.path.startswith(resolve):
            commit, _, path = asked.path.removeprefix(resolve).partition("/")
            at = f"http://localhost:{self.port}/cdn/{commit}/{path}"  # another host
            return (
                (302, {"Location": at}, b"")
                if path in self.commits.get(commit, {})
                else (404, {}, b"")
            )
        if asked.path.startswith(f"/{REPO}/resolve/"):
            revision, _, path = asked.path.removeprefix(f"/{REPO}/resolve/").partition("/")
            commit = self.main if revision == "main" else revision
            data = self.commits.get(commit, {}).get(path)
            if data is None:
                return 404, {"X-Error-Code": "EntryNotFound"}, b""
            about = {
                "X-Repo-Commit": commit,
                "X-Linked-Etag": f'"{len(data)}"',
                "X-Linked-Size": str(len(data)),
            }
            return (
                302,
                about | {"Location": f"http://localhost:{self.port}/cdn/{commit}/{path}"},
                b"",
            )
        if not asked.path.startswith(api):
            return 404, {}, b"{}"
        what, *rest = asked.path.removeprefix(api).strip("/").split("/")
        if what in ("", "revision"):
            commit = rest[0] if rest and rest[0] != "main" else self.main
            found = {
                "id": REPO,
                "sha": commit,
                "siblings": [],
                "private": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
            }
            return (
                _json(found)
                if commit in self.commits
                else (404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
            )
        entries = self._tree(self.commits[rest[0]], "/".join(rest[1:]))
        return _json(entries) if entries else (404, {"X-Error-Code": "EntryNotFound"}, b"{}")

    @staticmethod
    def _tree(files: Mapping[str, bytes], folder: str) -> list[dict[str, Any]]:
        head = f"{folder}/" if folder else ""
        found: dict[str, dict[str, Any]] = {}
        for path in (path for path in files if path.startswith(head)):
            name, below, _ = path.removeprefix(head).partition("/")
            kind, size = ("directory", 0) if below else ("file", len(files[path]))
            found[name] = {"type": kind, "path": head + name, "size": size, "oid": "0" * 40}
        return list(found.values())


def _json(what: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(what).encode()
