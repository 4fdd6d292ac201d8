"""A player of rollouts without torch: `player.py SETTINGS HOW RUN STEP`.

It reports the digest of the weights as the success, and logs the requested steps in RUN/played.

HOW: `plays`; `fails` with some last words; `nonsense` writes no JSON; `hangs` until its standard
input ends; `hangs:STEP` at that step only.
"""

import hashlib
import json
import os
import sys
from pathlib import Path


def main() -> int:
    play = sys.argv[1]
    how = sys.argv[2]
    run = Path(sys.argv[3])
    step = int(sys.argv[4])
    weights = (run / f"rollouts/due/step-{step:08d}/model.safetensors").read_bytes()
    with (run / "played").open("a") as file:
        file.write(f"{step}\n")
    mine = run / f"player-{step}.new"
    mine.write_text(str(os.getpid()))
    mine.rename(run / f"player-{step}")
    if how == "fails":
        print("the door is stuck", file=sys.stderr)
        return 3
    if how in ("hangs", f"hangs:{step}"):
        os.read(0, 1)
        return 1
    digest = hashlib.sha256(weights).hexdigest()
    rate = {"successes": int(digest[:1], 16), "episodes": 16}
    result = {"step": step, "play": json.loads(play), "weights": digest}
    result |= {
        "world": "tabletop",
        "protocol": {},
        "success": rate,
        "tasks": {"pick up the red block": rate},
    }
    new = run / f"rollouts/step-{step:08d}.json.new"
    text = "{}" if how == "nonsense" else json.dumps(result)
    new.write_text(text)
    new.rename(new.with_suffix(""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
