#!/usr/bin/env python3
"""E9: each alert fired once by its fault. promtool runs alerts.yaml against the rules as they ship.

    test_alerts.py SOURCE_ROOT

Without promtool (Debian: prometheus) the cases are only counted, and the test is skipped (77).
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
RULES = ROOT / "deploy/monitoring/rules.yaml"
CASES = ROOT / "tests/unit/tools/alerts.yaml"


def fired(text):
    """Alerts that some case expects, and those that some case expects not to fire."""
    rows = re.findall(r"alertname: (\w+)\n\s+exp_alerts:( \[\])?", text)
    return {a for a, none in rows if not none}


def main():
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    missing = alerts - fired(CASES.read_text())
    assert not missing, f"no case fires {missing}"
    promtool = shutil.which("promtool")
    if not promtool:
        print("promtool is not installed")
        return 77
    with tempfile.TemporaryDirectory() as tmp:
        for path in (RULES, CASES):
            shutil.copy(path, tmp)
        p = subprocess.run([promtool, "test", "rules", pathlib.Path(tmp) / CASES.name], capture_output=True, text=True,
                           timeout=100)
        print(p.stdout, p.stderr)
        return p.returncode


sys.exit(main())
