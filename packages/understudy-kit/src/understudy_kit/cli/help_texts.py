"""Texts of the help: examples of each command, flags of all, and the most used settings."""

from understudy_base import find_entry_points, page

GENERAL = [
    ("-h, --help", "Show this help."),
    ("--print-config", "Print the complete settings as YAML, and do nothing else."),
    ("--debug", "Show the traceback of an error."),
]
"""Flags of every command."""
OPTIONS = {
    "policy-code": (
        "--policy-code FILE",
        f"Python file of a policy whose type is code of its own ({page('own_policies.md')}).",
    ),
}
"""Flags of every command that other distributions bring, by their entry point."""
LAUNCH = (
    "--launch N",
    "Start N processes on this host, one per GPU, as `torchrun --nproc-per-node N -m understudy "
    "...` would.",
)
POSITIONAL = {
    "[FILE]": "Settings file in YAML, TOML or JSON; flags take precedence. The default is no file.",
    "RUN": "Run directory: the --output-dir of its `train`.",
    "POLICY": "Folder of `understudy export`, or a run directory.",
}
"""Meaning of a positional argument that is not a setting."""
MOST_USED = (
    "data.root",
    "output_dir",
    "steps",
    "batch_size",
    "micro_batch_size",
    "optim.lr",
    "data.chunk_size",
    "data.cameras",
    "data.val_fraction",
    "policy.image_size",
    "init_from",
    "device",
    "precision",
    "loader.num_threads",
    "loader.memory",
    "checkpoint.every",
    "val.every",
    "rollout.every",
    "log.trackers",
)
"""Settings of a run that its help repeats at the end, with the first sentence of each."""
EXAMPLES = {
    "demo": (
        "understudy demo",
        "understudy demo --output-dir runs/short --episodes 50 --steps 500",
    ),
    "record": (
        "understudy record --output-dir data/table --episodes 200",
        "understudy record --output-dir data/push --env metaworld --tasks push-v3 --image-size 128",
    ),
    "import": (
        "understudy import demo.hdf5 data/lift --task 'lift the cube'",
        "understudy import bags/0001.mcap --propose > cups.yaml",
        "understudy import bags data/cups --mapping cups.yaml --skip-bad",
    ),
    "select": (
        "understudy select data/table red --where '\"red\" in task' --val-fraction 0.2",
        "understudy select data/table",
    ),
    "train": (
        "understudy train --data.root data/table --output-dir runs/table",
        "understudy train settings.yaml --steps 5000 --optim.lr 3e-4",
        "understudy train mixture.yaml --launch 2",
        "understudy train settings.yaml --print-config > whole.yaml",
    ),
    "resume": ("understudy resume runs/table", "understudy resume runs/table --steps 10000"),
    "push": (
        "understudy push runs/table/policy --to hf://me/table-policy",
        "understudy push runs/table --to hf://me/table-run --checkpoint 10000",
        "understudy push data/table --to hf://datasets/me/table --public",
    ),
    "pull": (
        "understudy pull hf://me/table-run --output-dir runs/table",
        "understudy pull hf://datasets/me/table --output-dir data/table",
    ),
    "validate": (
        "understudy validate runs/table",
        "understudy validate runs/table --checkpoint best --per-dim --launch 2",
    ),
    "plan": (
        "understudy plan settings.yaml --gpu-memory 24GB 48GB 80GB",
        "understudy plan --data.root data/table --policy.type pi05 --precision bf16-split "
        "--gpu-memory 80GB",
    ),
    "statistics": (
        "understudy statistics settings.yaml --workers 16",
        "understudy statistics settings.yaml --ray auto --work parts",
    ),
    "fast fit": (
        "understudy fast fit settings.yaml --output-dir fast",
        "understudy fast fit --policy.type pi05 --data.root data/table --data.chunk-size 50 "
        "--output-dir fast",
    ),
    "tokenizer fit": (
        "understudy tokenizer fit --policy.size tiny --data.root data/table --output-dir tokenizer",
        "understudy tokenizer fit settings.yaml --output-dir tokenizer",
    ),
    "profile": (
        "understudy profile --data.root data/table",
        "understudy profile settings.yaml --batch-size 128 --profile.steps 50 --json",
    ),
    "rollout": (
        "understudy rollout runs/table --episodes 30",
        "understudy rollout runs/mt10 --env metaworld --tasks push-v3 door-open-v3 "
        "--action-steps 8",
    ),
    "export": (
        "understudy export runs/table",
        "understudy export runs/table --checkpoint best --dtype bf16 --output-dir policies/table",
        "understudy export runs/pi05 --format lerobot --output-dir policies/pi05",
    ),
    "report": (
        "understudy report runs/table",
        "understudy report runs/one runs/two --output one-two.html",
        "understudy report runs/one runs/two --json",
    ),
    "score": (
        "understudy score runs/value data/table data/scored",
        "understudy score runs/value data/table data/scored --num-steps 20 --positive 0.4 "
        "--interventions helped",
    ),
    "check": (
        "understudy check data/table",
        "understudy check data/table --page table.html --skip-bad bad.json",
        "understudy check hf://datasets/OWNER/NAME --depth metadata --keep-ranges keep.json "
        "--chunk-size 16",
    ),
    "view": (
        "understudy view data/table",
        "understudy view data/table --keep-ranges keep.json --findings findings.json",
        "understudy view data/table --export page --episodes 0 3 7",
        "understudy view data/table --rerun table.rrd --episodes 0 3 7",
        "understudy view runs/table --checkpoint best",
    ),
    "serve": (
        "understudy serve runs/table",
        "understudy serve runs/table/policy --contract strict --host 0.0.0.0 "
        "--token-file token.txt",
        "understudy serve runs/table --lerobot-port 8080",
    ),
    "contract": (
        "understudy contract runs/table data/other",
        "understudy contract policies/act robot.json --json",
    ),
    "why": ("understudy why runs/table", "understudy why policies/act trace.jsonl"),
    "replay": (
        "understudy replay runs/table",
        "understudy replay runs/table --episode 12 --contract strict --json",
    ),
    "edit": (
        "understudy edit data/table data/red --where '\"red\" in task'",
        "understudy edit data/table data/rated --metadata ratings.csv",
        "understudy edit data/monday data/tuesday data/both --skip-bad",
        "understudy edit data/table data/small --size 224 --codec libx264 --gop 2",
        "understudy edit data/table data/parts --split train=0.9 val=0.1",
    ),
    "publish": ("understudy publish robots/arm-1 robots/arm-2 data/all",),
    "segment": (
        "understudy segment data/table data/moves --by pauses",
        "understudy segment data/table data/steps --subtasks steps.csv --task-from-text",
        "understudy segment data/table data/cuts --times cuts.json",
    ),
    "ranges": (
        "understudy ranges data/table --output keep.json",
        "understudy ranges data/droid --output keep.json --preset droid",
    ),
    "bench": (
        "understudy bench data/table",
        "understudy bench data/table --batch-size 64 --num-threads 4 --memory 4GB",
    ),
    "order explain": (
        "understudy order explain",
        "understudy order explain data/one data/two --weights 2 1 --batch-size 256",
    ),
    "order export": (
        "understudy order export runs/table samples.parquet",
        "understudy order export data/table order.parquet --batch-size 256 --steps 10000 "
        "--world-size 8",
    ),
    "audit": (
        "understudy audit runs/table --out account",
        "understudy audit runs/table --checkpoint 4000 --without 12 40-44",
        "understudy audit samples.parquet --validation 0-9",
    ),
    "check-policy": (
        "understudy check-policy flow",
        "understudy check-policy my_policy.py:MINE --settings hidden 128",
        "understudy check-policy runs/table --json",
    ),
}


def general() -> list[tuple[str, str]]:
    """Return the flags of every command, with those of the distributions that are installed."""
    options = find_entry_points("understudy.options")
    return GENERAL + [OPTIONS.get(name, (f"--{name} TEXT", "")) for name in options]
