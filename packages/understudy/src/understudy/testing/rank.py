"""A scripted rank without torch: `python rank.py FOLDER WORD...`, one word per rank (the last for
the rest).

say      write its environment to FOLDER/rank-N.json, print a line, exit with 0
exit=N   exit with N, after a line on stderr
die      kill itself with SIGKILL
stay     write FOLDER/rank-N.json, then wait for a signal: log each, and exit with 75 a moment after
         the first
speak    like stay, with a line on stderr at the end
deaf     write FOLDER/rank-N.json, then wait and ignore SIGTERM
young    write FOLDER/rank-N.json, then wait with the default action of every signal
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

KEYS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
)


def main() -> int:
    folder = Path(sys.argv[1])
    words = sys.argv[2:]
    rank = int(os.environ["RANK"])
    word = words[min(rank, len(words) - 1)]
    got: list[int] = []
    if word in ("stay", "speak"):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda number, _: got.append(number))
    if word == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    known = {key: os.environ.get(key) for key in KEYS} | {"pid": os.getpid()}
    new = folder / f"rank-{rank}.new"
    new.write_text(json.dumps(known))
    new.rename(folder / f"rank-{rank}.json")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word.startswith("exit="):
        print(f"rank {rank} leaves because of a reason", file=sys.stderr)
        return int(word.removeprefix("exit="))
    if word == "say":
        print(f"rank {rank} is here")
        return 0
    while not got:
        time.sleep(0.02)
    if word == "speak":
        print(f"rank {rank} was stopped", file=sys.stderr)
    time.sleep(0.4 * rank)  # the later ones still write long after the first has left
    (folder / f"saved-{rank}.json").write_text(json.dumps(got))
    return 75


if __name__ == "__main__":
    sys.exit(main())
