#!/usr/bin/env python3
"""The two commands of the README do not lie and leave nothing behind: tools/test, tools/dev/packages,
tools/dev/quiet, run with stand-ins for apt, meson and ninja.

    test_scripts.py SOURCE_ROOT
"""
import http.server
import importlib.util
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(sys.argv[1])
LIMIT_S = 60


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


def until(condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("did not happen in time")
        time.sleep(0.01)


class Tree(unittest.TestCase):
    """A scratch tree with the real script and stand-ins around it."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="incipit-scripts-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.bin = self.dir / "bin"
        self.bin.mkdir()
        self.env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        self.env.pop("INCIPIT_TEST_LONG", None)

    def copy(self, name, change=lambda text: text):
        to = self.dir / "tree" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(change((ROOT / name).read_text()))
        to.chmod(to.stat().st_mode | stat.S_IXUSR)
        return to


class TestCommand(Tree):
    ROWS = [("OK", "unit/a"), ("SKIP", "unit/b"), ("OK", "unit/c")]

    def run_test(self, *args, packages="exit 0", rows=ROWS, meson_rc=0, e2e="ok x (1 s)\nskip y: no z\n# e2e complete"):
        tool = self.copy("tools/test")
        self.copy("tools/dev/quiet")
        tree = self.dir / "tree"
        script(tree / "tools/dev/packages", packages)
        script(tree / "tools/dev/get-model", "exit 1")
        script(tree / "tools/dev/get-vocabs", "exit 1")
        script(tree / "tests/e2e/run.sh", f"printf '%s\\n' '{e2e}'" if e2e else "exit 1")
        log = "".join(f'{{"name": "incipit / {n}", "result": "{r}"}}\n' for r, n in rows)
        (self.dir / "rows").write_text(log)
        script(self.bin / "meson", f'''
case $1 in
setup) mkdir -p "$2"; : >"$2/build.ninja" ;;
test) [ "$4" != --list ] || exec echo "incipit:unit / unit/a"
    mkdir -p "$3/meson-logs"; cp {self.dir}/rows "$3/meson-logs/testlog.json"; exit {meson_rc} ;;
esac''')
        script(self.bin / "ninja", 'env >"$2/env"')
        p = subprocess.run([tool, *args], capture_output=True, text=True, env=self.env, timeout=LIMIT_S)
        return p.returncode, p.stdout.splitlines()

    def test_packages_that_cannot_be_installed_are_a_failure(self):
        """E12: with apt without a network it said "0 passed, 0 failed" and ended with 0."""
        for args in ((), ("--asan",), ("--e2e",), ("--fuzz",)):
            code, out = self.run_test(*args, packages="exit 1")
            self.assertEqual((code, out[-1]), (1, "0 passed, 1 failed"), out)
            self.assertTrue(any(line.startswith("FAILED: packages") for line in out), out)

    def test_counts_are_those_of_the_parts(self):
        code, out = self.run_test("--asan")
        self.assertEqual((code, out[-2:]), (0, ["1 skipped", "2 passed, 0 failed"]), out)
        self.assertIn("skipped: ASan+UBSan: unit/b", out)
        code, out = self.run_test("--asan", rows=[*self.ROWS, ("TIMEOUT", "unit/d")], meson_rc=1)
        self.assertEqual((code, out[-1]), (1, "2 passed, 1 failed"), out)
        self.assertIn("FAILED: ASan+UBSan: unit/d (TIMEOUT)", out)

    def test_one_by_name_is_counted_too(self):
        code, out = self.run_test("unit/a", rows=[("OK", "unit/a")])
        self.assertEqual((code, out[-1]), (0, "1 passed, 0 failed"), out)
        code, out = self.run_test("unit/a", rows=[("FAIL", "unit/a")], meson_rc=1)
        self.assertEqual((code, out[-1]), (1, "0 passed, 1 failed"), out)
        self.assertEqual(self.run_test("no_such_test")[0], 2)

    def test_long_only_when_asked(self):
        """Set and empty it was, for every test that only asks whether it is there."""
        for args in (("--asan",), ("--asan", "--long")):
            self.run_test(*args)
            env = (self.dir / "tree/build-asan/env").read_text().splitlines()
            self.assertEqual([v for v in env if v.startswith("INCIPIT_TEST_LONG")],
                             ["INCIPIT_TEST_LONG=1"] if "--long" in args else [])

    def test_a_run_that_ran_nothing_or_broke_off_is_a_failure(self):
        """E12: nothing counted and nothing failed is no success."""
        for rows, rc in (([], 0), ([], 1), (self.ROWS, 2)):
            code, out = self.run_test("--tsan", rows=rows, meson_rc=rc)
            self.assertEqual(code, 1, out)
            self.assertTrue(out[-1].endswith(" 1 failed"), out)

    def test_end_to_end_lines_are_counted_and_skips_named(self):
        code, out = self.run_test("--e2e")
        self.assertEqual((code, out[-1]), (0, "1 passed, 0 failed"), out)
        self.assertIn("skipped: e2e: y: no z", out)
        code, out = self.run_test("--e2e", e2e="ok x (1 s)")
        self.assertEqual((code, out[-1]), (1, "1 passed, 1 failed"), out)


class Packages(Tree):
    def start(self, apt):
        """A copy of the script with the policy file in our folder, so that a test touches no machine's."""
        self.policy = self.dir / "policy-rc.d"
        tool = self.copy("tools/dev/packages", lambda t: t.replace("/usr/sbin/policy-rc.d", str(self.policy)))
        self.copy("tools/dev/quiet")
        script(self.bin / "dpkg-query", "exit 1")
        script(self.bin / "sudo", '[ "$1" = -n ] && shift; [ "$1" = true ] || exec "$@"')
        script(self.bin / "apt-get", apt)
        return subprocess.Popen([tool, "run"], env=self.env, start_new_session=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def test_ctrl_c_leaves_no_policy_file(self):
        """E17: Ctrl-C during apt left the file that keeps every service of the machine from starting."""
        for sig, where in ((signal.SIGINT, "update"), (signal.SIGINT, "install"), (signal.SIGTERM, "install")):
            flag = self.dir / f"{where}-{sig}"
            p = self.start(f'[ "$1" = {where} ] || exit 0\n: >{flag}\nwhile :; do sleep .05; done')
            until(flag.exists)
            self.assertTrue(self.policy.exists())
            os.killpg(p.pid, sig)  # as a terminal does
            p.communicate(timeout=LIMIT_S)
            self.assertFalse(self.policy.exists(), (sig, where))
            self.assertNotEqual(p.returncode, 0)

    def test_the_policy_file_of_others_stays_and_a_killed_runs_goes(self):
        (self.dir / "policy-rc.d").write_text("#!/bin/sh\nexit 0\n")
        p = self.start("exit 0")
        p.communicate(timeout=LIMIT_S)
        self.assertEqual((p.returncode, self.policy.read_text()), (0, "#!/bin/sh\nexit 0\n"))
        self.policy.unlink()
        flag = self.dir / "running"
        p = self.start(f": >{flag}\nwhile :; do sleep .05; done")
        until(flag.exists)
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate(timeout=LIMIT_S)
        self.assertTrue(self.policy.exists())
        p = self.start("exit 0")
        p.communicate(timeout=LIMIT_S)
        self.assertFalse(self.policy.exists())

    def test_failure_says_what_apt_said(self):
        p = self.start("echo 'E: no such mirror'; exit 100")
        _, err = p.communicate(timeout=LIMIT_S)
        self.assertEqual(p.returncode, 1)
        self.assertIn("E: no such mirror", err)
        self.assertFalse(self.policy.exists())


class Quiet(Tree):
    def test_a_terminal_sees_seconds_and_the_last_line(self):
        """E17: a minute of apt and a minute of ninja without a sign of life."""
        log, flag = self.dir / "log", self.dir / "flag"
        master, slave = pty.openpty()
        p = subprocess.Popen([ROOT / "tools/dev/quiet", log, "bash", "-c",
                              f"echo '[12/200] compiling'; until [ -e {flag} ]; do sleep .05; done; exit 7"],
                             stdout=slave, stderr=slave)
        os.close(slave)
        seen = b""
        end = time.monotonic() + LIMIT_S
        while b"[12/200] compiling" not in seen and time.monotonic() < end:
            if select.select([master], [], [], 1)[0]:
                seen += os.read(master, 4096)
        flag.touch()
        self.assertEqual(p.wait(LIMIT_S), 7)
        os.close(master)
        self.assertRegex(seen.decode(), r"\d s  \[12/200\] compiling")

    def test_without_a_terminal_nothing_is_shown(self):
        log = self.dir / "log"
        p = subprocess.run([ROOT / "tools/dev/quiet", log, "bash", "-c", "echo out; echo err >&2; exit 3"],
                           capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual((p.returncode, p.stdout + p.stderr), (3, ""))
        self.assertEqual(log.read_text(), "out\nerr\n")


class Demonstration(unittest.TestCase):
    def serve(self, chat_status, chat_body):
        """A worker's two endpoints; returns its port."""
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                requests.append((self.path, request))  # before the answer, which the test waits for
                is_chat = self.path == "/v1/chat/completions"
                self.send_response(chat_status if is_chat else 200)
                self.end_headers()
                event = {"choices": [{"text": " eight", "finish_reason": "stop"}], "usage": {"prompt_tokens": 5}}
                self.wfile.write(chat_body if is_chat else
                                 f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())

            def log_message(self, *args):
                pass

        requests = []
        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server.server_port, requests

    def test_a_model_without_a_template_is_asked_by_completions(self):
        spec = importlib.util.spec_from_file_location("pool", ROOT / "tools/dev/pool.py")
        pool = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(pool)
        said = []
        pool.say = said.append
        why = json.dumps({"error": {"message": "this model has no usable chat template: none in the file"}})
        port, requests = self.serve(400, why.encode())
        answer, ask, api = pool.first_answer(port)
        self.assertEqual((answer["text"], api), (" eight", "completions"))
        self.assertIn("/v1/completions", said[0])
        ask(port)
        self.assertEqual([p for p, _ in requests], ["/v1/chat/completions", "/v1/completions", "/v1/completions"])
        self.assertTrue(requests[1][1]["prompt"].endswith("Answer:"))
        port, _ = self.serve(400, b"another error")
        with self.assertRaisesRegex(pool.PoolError, "another error"):
            pool.first_answer(port)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
