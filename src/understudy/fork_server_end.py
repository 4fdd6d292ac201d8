"""Imported by the fork servers that `parts` starts: their command may be killed, so they remove their socket."""

import atexit
import os
import shutil

from understudy.parts import fork_server

_PROCESS = os.getpid()


@atexit.register
def _remove_socket() -> None:
    """Remove the folder of the socket at the end of the fork server, but not of a process that it forked."""
    server = fork_server()
    if os.getpid() != _PROCESS or server is None or server._forkserver_pid is not None:
        return
    if server._inherited_fds is None and server._forkserver_address:
        shutil.rmtree(os.path.dirname(server._forkserver_address), ignore_errors=True)
