"""Write the JSON Schema of contract.json from the classes of its form:
`python scripts/contract_schema.py`.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from understudy_client.contract import form

FILE = Path(form.__file__).with_name("contract.schema.json")


def make_schema() -> str:
    """Return the text of the file."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(form.Contract),
    }
    return json.dumps(arranged(schema), indent=2) + "\n"


def arranged(value: Any) -> Any:
    """Return values whose descriptions and alternatives are those of any release of msgspec."""
    if isinstance(value, list):
        return [arranged(part) for part in value]
    if not isinstance(value, dict):
        return value
    parts = {key: arranged(part) for key, part in value.items()}
    if isinstance(parts.get("description"), str):
        parts["description"] = " ".join(parts["description"].split())
    if "anyOf" in parts:
        parts["anyOf"].sort(key=str)
    return parts


if __name__ == "__main__":
    FILE.write_text(make_schema(), encoding="utf-8")
