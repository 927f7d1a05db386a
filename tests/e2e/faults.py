#!/usr/bin/env python3
"""Each section of deploy/RUNBOOK.md proven: its fault is produced with real processes, and then the metric that it names,
the log line that it quotes and the alert itself must be there.

    tests/e2e/faults.py BUILD [ALERT ...]

An alert is tried by promtool on series made of what was scraped before the fault and after it: counters go on as they
went, gauges stay. Prints the lines of tests/e2e/e2e.py. A tiny random model serves: what is computed does not matter.
"""
import concurrent.futures
import contextlib
import hashlib
import json
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/dev"), str(ROOT / "tests/integration"), str(ROOT / "tests/golden")]
from pool import Pool, PoolError, free_base, http_get, metric  # noqa: E402
import wire_client  # noqa: E402

BUILD = pathlib.Path("build")
BASE_PORT = 0  # main() finds some
RULES = ROOT / "deploy/monitoring/rules.yaml"
RUNBOOK = re.sub(r"\s+", " ", (ROOT / "deploy/RUNBOOK.md").read_text())
WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen".split()


class Skip(Exception):
    """The fault can't be produced here; its text says what is missing."""


def expect(cond, text):
    if not cond:
        raise AssertionError(text)


def until(cond, what, seconds=60):
    end = time.monotonic() + seconds
    while True:
        try:
            if cond():
                return
        except (OSError, KeyError):
            pass
        expect(time.monotonic() < end, f"{what}: not within {seconds} s")
        time.sleep(0.05)


def complete(port, prompt, n=4):
    import http.client
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": n, "temperature": 0}),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, json.loads(r.read() or b"{}")
    finally:
        c.close()


def prompt(seed, words=120):
    """Some blocks of text that no other seed shares."""
    return " ".join(WORDS[(seed * 7919 + i * i + i // 3) % len(WORDS)] + str(seed) for i in range(words))


def section(alert):
    m = re.search(rf"### {alert} (.*?)(?= ###? )", RUNBOOK)
    expect(m, f"RUNBOOK has no section {alert}")
    return m.group(1)


class Targets:
    """What Prometheus would scrape: one reading of all targets is {series text: value}, `up` included."""

    def __init__(self, **ports):
        self.ports = ports

    def read(self):
        out = {}
        for name, port in self.ports.items():
            labels = f'job="pool", instance="{name}"'
            try:
                text = http_get(port, "/metrics")[1].decode()
            except OSError:
                out[f"up{{{labels}}}"] = 0.0
                continue
            out[f"up{{{labels}}}"] = 1.0
            for m in re.finditer(r"(?m)^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", text):
                more = ", " + m.group(2) if m.group(2) else ""
                with contextlib.suppress(ValueError):
                    out[f"{m.group(1)}{{{labels}{more}}}"] = float(m.group(3))
        return out


def values(name, before, after):
    """Half an hour as it was, an hour and a half as it is: one sample a minute."""
    if after is None:
        return f"{before!r}x30 _x90"
    if before is None:
        return f"_x30 {after!r}x90"
    if name.endswith("_total") and after > before:
        return f"{before!r}x30 {after!r}+{after - before!r}x90"
    return f"{before!r}x30 {after!r}x90"


def fires(alert, before, after):
    """The alert is silent before the fault and fires after it."""
    promtool = shutil.which("promtool")
    if not promtool:
        return "promtool is not installed: alert not tried"
    used = set(re.findall(r"\b(?:up|haproxy_\w+|process_\w+|incipit_\w+)\b", RULES.read_text()))
    series = []
    for key in sorted({*before, *after}):
        name = key.split("{")[0]
        if name in used:
            series.append({"series": key, "values": values(name, before.get(key), after.get(key))})

    def fired(at):
        test = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m",
                "tests": [{"interval": "1m", "input_series": series,
                           "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": []}]}]}
        with tempfile.TemporaryDirectory() as tmp:
            shutil.copy(RULES, tmp)
            (pathlib.Path(tmp) / "t.yaml").write_text(json.dumps(test))  # JSON is YAML
            p = subprocess.run([promtool, "test", "rules", f"{tmp}/t.yaml"], capture_output=True, text=True, timeout=60)
        text = p.stdout + p.stderr
        expect(p.returncode == 0 or alert in text, f"promtool: {text[-800:]}")
        return p.returncode != 0
    expect(not fired("25m"), f"{alert} fires before its fault")
    expect(any(fired(at) for at in ("33m", "36m", "45m", "80m")), f"{alert} does not fire")
    return "fires"


class Fault:
    """A pool, a fault in it, and what must be seen then."""

    def __init__(self, work, alert, **more):
        self.work, self.alert = work, alert
        model = work / "m.gguf"
        if not model.exists():
            subprocess.run([BUILD / "tools/dev/mkmodel", "--ctx", "2048", model], check=True)
        more.setdefault("workers", 1)
        more.setdefault("redis", False)
        more.setdefault("ram", "64m")
        more.setdefault("disk", "64m")
        self.pool = Pool(BUILD, model, directory=work / "pool", port=BASE_PORT, **more)
        self.pool.worker_args += ["--kv-bytes", "16m", "--digest-cache", "none"]
        ports = {f"w{i + 1}": p for i, p in enumerate(self.pool.worker_ports)}
        self.targets = Targets(node=self.pool.cache_http, **ports)

    def __enter__(self):
        self.pool.dir.mkdir(parents=True)
        if self.pool.redis:
            self.pool.start_redis()
        if self.pool.cache:
            self.pool.start_cachesvc()
        for i in range(self.pool.n_workers):
            self.pool.start_worker(i)
        if self.pool.cache:
            until(lambda: metric(self.w, "incipit_worker_cache_connected") == 1, "the worker is connected")
            expect("level=warn" not in self.log("cachesvc"), "a fresh node warns: " + self.log("cachesvc"))
        return self

    def __exit__(self, *_):
        self.pool.stop()

    @property
    def w(self):
        return self.pool.worker_ports[0]

    @property
    def node(self):
        return self.pool.cache_http

    def log(self, name):
        return (self.pool.dir / f"{name}.log").read_text(errors="replace")

    def seen(self, before, *names, log=None):
        """names: metrics that the section names and that moved; log: (process, its line)."""
        after = self.targets.read()
        text = section(self.alert)
        for name in names:
            expect(f"`{name}" in text, f"the section {self.alert} does not name {name}")
            moved = [k for k in {*before, *after} if k.split("{")[0] == name and before.get(k) != after.get(k)]
            expect(moved, f"{name} did not move")
        if log:
            process, line = log
            expect(f"og `{line}`" in text, f"the section {self.alert} does not quote '{line}'")
            until(lambda: line in self.log(process), f"log line '{line}' of {process}", 10)
        return fires(self.alert, before, after)


# -- faults, by the name of their alert -------------------------------------------------------------------


def IncipitTargetDown(work):
    with Fault(work, "IncipitTargetDown") as f:
        before = f.targets.read()
        f.pool.kill("cachesvc")
        return f.seen(before, "up")


def IncipitNoWorker(work):
    with Fault(work, "IncipitNoWorker") as f:
        f.pool.start_haproxy()
        f.targets.ports["haproxy"] = f.pool.balancer_stats
        before = f.targets.read()
        f.pool.kill("worker-1")
        until(lambda: http_get(f.pool.balancer_stats, "/readyz")[0] == 503, "the balancer is not ready")
        status, body = complete(f.pool.port, "x")
        expect(status == 503 and "error" in body, f"{status} {body}")
        return f.seen(before, "haproxy_backend_active_servers")


def IncipitRestarts(work):
    with Fault(work, "IncipitRestarts") as f:
        key = 'process_start_time_seconds{job="pool", instance="w1"}'
        before = f.targets.read()
        f.pool.kill("worker-1")
        time.sleep(0.02)  # the clock of /proc ticks every 10 ms
        f.pool.start_worker(0)
        after = f.targets.read()
        expect(after[key] > before[key], "the start time did not move")
        expect("`process_start_time_seconds`" in section(f.alert), "section")
        return "metric moves; three starts within a quarter of an hour are alerts.yaml's"


def patched(program, old, new, to):
    data = program.read_bytes()
    expect(data.count(old) >= 1, "the bytes to change are not in the program")
    to.write_bytes(data.replace(old, new))
    to.chmod(0o755)


def IncipitNumericsBroken(work):
    """A worker whose expected digest has one bit changed, which is what a wrong build looks like to it."""
    source = (ROOT / "worker/kernels/kern_selftest.c").read_text()
    block = re.search(r"\{((?:\s*0x[0-9a-f]{2},?){32})\s*,?\s*\}", source)
    expect(block, "no digest in kern_selftest.c")
    digest = bytes(int(x, 16) for x in re.findall(r"0x([0-9a-f]{2})", block.group(1)))
    with Fault(work, "IncipitNumericsBroken") as f:
        before = f.targets.read()
        f.pool.kill("worker-1")
        exe = work / "incipit-worker"
        patched(BUILD / "worker/incipit-worker", digest, bytes([digest[0] ^ 1]) + digest[1:], exe)
        f.pool.program = lambda folder, name: str(exe)
        f.pool.start_worker(0)
        expect(complete(f.w, prompt(1))[0] == 200, "it does not serve")
        return f.seen(before, "incipit_worker_numerics_mismatch",
                      log=("worker-1", "numerics self-test differs from the contract, the cache is off"))


def IncipitConflict(work):
    """A client that puts other bytes' sums under an id that is there."""
    w, frames = wire_client, sys.modules["frames"]
    with Fault(work, "IncipitConflict") as f:
        before = f.targets.read()
        path = str(f.pool.cache_sock)
        control, conn = w.Conn(path), w.Conn(path)
        session = control.call("hello", 1, w.hello(), deadline_ms=2000)[5]
        conn.call("hello", 1, w.hello(session))
        digest = hashlib.sha256(w.DESCRIPTOR).digest()
        ns = control.call("register_ns", 2, frames.data(1, digest) + frames.data(2, w.DESCRIPTOR) + w.SHAPE)[1]

        def begin(request, sums):
            return control.call("put_begin", request, frames.num(1, ns) + frames.data(2, frames.block_id(0))
                                + frames.data(3, bytes(32)) + frames.packed(4, [0])
                                + frames.packed64(5, [frames.block_sum(sums, frames.block_id(0))]))
        put = begin(3, frames.RANGE_SUMS)[1]
        conn.s.sendall(frames.frame("put_data", frames.ONEWAY, 9, frames.num(1, put) + frames.num(2, 0)
                                    + frames.packed64(3, frames.RANGE_SUMS), frames.PAYLOAD))
        control.call("put_commit", 4, frames.num(1, put) + frames.packed(2, [0]) + frames.num(3, 1))
        begin(5, [s ^ 1 for s in frames.RANGE_SUMS])
        return f.seen(before, "incipit_store_conflict_total")


def tensor_range(path, name):
    """(offset, bytes) of an F32 tensor in a GGUF file of one part."""
    b = path.read_bytes()
    at = 8

    def take(fmt):
        nonlocal at
        v = struct.unpack_from("<" + fmt, b, at)
        at += struct.calcsize("<" + fmt)
        return v[0] if len(v) == 1 else v

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return b[at - n:at].decode(errors="replace")
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        if kind == 9:
            kind, n = take("I"), take("Q")
            for _ in range(n):
                value(kind)
            return None
        raw = b[at:at + sizes[kind]]
        at += sizes[kind]
        return int.from_bytes(raw, "little")
    n_tensors, n_kv = take("Q"), take("Q")
    align = 32
    for _ in range(n_kv):
        key = text()
        v = value(take("I"))
        align = v if key == "general.alignment" else align
    rows = []
    for _ in range(n_tensors):
        t = text()
        dims = [take("Q") for _ in range(take("I"))]
        rows.append((t, dims, take("I"), take("Q")))
    start = (at + align - 1) // align * align
    row = next(r for r in rows if r[0] == name)
    expect(row[2] == 0 and len(row[1]) == 1, f"{name} is no F32 vector")
    return start + row[3], 4 * row[1][0]


def IncipitNotFinite(work):
    """Finite weights so large that results overflow."""
    with Fault(work, "IncipitNotFinite") as f:
        before = f.targets.read()
        f.pool.kill("worker-1")
        at, n = tensor_range(f.pool.model, "output_norm.weight")
        bad = work / "bad.gguf"
        data = bytearray(f.pool.model.read_bytes())
        data[at:at + n] = struct.pack("<f", 3e38) * (n // 4)
        bad.write_bytes(data)
        f.pool.model = bad
        f.pool.start_worker(0)
        status, body = complete(f.w, prompt(1))
        expect(status == 500, f"{status} {body}")
        return f.seen(before, "incipit_worker_requests_numeric_total")


def on_disk(f):
    """A prompt's blocks have reached the disk; the answer."""
    answer = complete(f.w, prompt(1))
    expect(answer[0] == 200, answer)
    until(lambda: (metric(f.node, "incipit_store_disk_blocks") or 0) > 0
          and metric(f.node, "incipit_store_dirty_blocks") == 0, "blocks on disk")
    return answer[1]["choices"][0]["text"]


def IncipitCorruptBlocks(work):
    with Fault(work, "IncipitCorruptBlocks") as f:
        text = on_disk(f)
        before = f.targets.read()
        f.pool.kill("cachesvc")
        f.pool.kill("worker-1")
        path = f.pool.dir / "disk/incipit.blocks"
        data = bytearray(path.read_bytes())
        # Payloads: pages that are neither empty nor a super block, the log of removals, or headers (disk_format.h).
        first = data.find(b"INX1")
        n = 0
        for at in range(first, len(data) - 4095, 4096):
            page = data[at:at + 4096]
            if any(page) and b"INX1" not in page and b"INS1" not in page:
                data[at + 100] ^= 1
                n += 1
        expect(n > 0, "no payload found")
        path.write_bytes(data)
        f.pool.start_cachesvc()
        f.pool.start_worker(0)
        until(lambda: metric(f.w, "incipit_worker_cache_connected") == 1, "the worker is connected")
        status, body = complete(f.w, prompt(1))
        expect(status == 200 and body["choices"][0]["text"] == text, f"{status} {body}")
        return f.seen(before, "incipit_store_disk_corrupt_total")


def IncipitModelChanged(work):
    with Fault(work, "IncipitModelChanged") as f:
        before = f.targets.read()
        text = complete(f.w, prompt(1))[1]["choices"][0]["text"]
        f.pool.model.write_bytes(bytes(f.pool.model.stat().st_size))
        http_get(f.w, "/readyz")  # a probe's, or the balancer's
        until(lambda: metric(f.w, "incipit_worker_model_changed") == 1, "the worker sees it")
        expect(complete(f.w, prompt(1))[1]["choices"][0]["text"] == text, "the answer changed")
        return f.seen(before, "incipit_worker_model_changed",
                      log=("worker-1", "the model file changed; what was loaded serves on"))


def IncipitCacheUnreachable(work):
    with Fault(work, "IncipitCacheUnreachable") as f:
        before = f.targets.read()
        f.pool.kill("cachesvc")
        until(lambda: metric(f.w, "incipit_worker_cache_connected") == 0, "the worker sees it")
        sent = metric(f.w, "incipit_worker_lookup_total")
        for i in range(5):
            expect(complete(f.w, prompt(i + 10))[0] == 200, "a request failed")
        expect(metric(f.w, "incipit_worker_lookup_total") == sent, "lookups are counted that were never sent")
        expect(metric(f.w, "incipit_worker_cache_nodes") == 1, "cache_nodes")
        return f.seen(before, "incipit_worker_cache_connected", log=("worker-1", "cache node down, computing without it"))


def IncipitRefusedSessions(work):
    tokens = work / "tokens"
    tokens.write_text("worker " + "a" * 32 + "\nadmin " + "b" * 32 + "\n")
    mine = work / "mine"
    mine.write_text("a" * 32 + "\n")
    for path in (tokens, mine):
        path.chmod(0o600)
    with Fault(work, "IncipitRefusedSessions", cache_args=["--token-file", str(tokens)],
               worker_args=["--token-file", str(mine)]) as f:
        before = f.targets.read()
        f.pool.kill("worker-1")
        mine.write_text("c" * 32 + "\n")
        f.pool.start_worker(0)
        until(lambda: metric(f.node, "incipit_cachesvc_hello_denied_total") > 8, "the node refuses it")
        return f.seen(before, "incipit_cachesvc_hello_denied_total",
                      log=("worker-1", "cache node down, computing without it"))


def IncipitDiskDegraded(work):
    """RLIMIT_FSIZE makes the kernel refuse writes of a running process, and lets them go on again."""
    with Fault(work, "IncipitDiskDegraded") as f:
        before = f.targets.read()
        pid = f.pool.procs["cachesvc"].pid
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, limits[1]))
        for i in range(3):
            expect(complete(f.w, prompt(i))[0] == 200, "a request failed")
        until(lambda: metric(f.node, "incipit_store_disk_degraded") == 1, "the node sees it")
        said = f.seen(before, "incipit_store_disk_degraded", log=("cachesvc", "the disk tier fails: RAM serves alone"))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        until(lambda: metric(f.node, "incipit_store_disk_degraded") == 0, "well again")
        until(lambda: "the disk tier works again" in f.log("cachesvc"), "log line")
        return said


def IncipitIndexUnreachable(work):
    with Fault(work, "IncipitIndexUnreachable", redis=True) as f:
        until(lambda: metric(f.node, "incipit_cachesvc_index_state") == 1, "the node uses Redis")
        before = f.targets.read()
        f.pool.kill("redis")
        until(lambda: metric(f.node, "incipit_cachesvc_index_state") == 2, "the node sees it")
        said = f.seen(before, "incipit_cachesvc_index_state", log=("cachesvc", "Redis takes nothing, its entries wait"))
        f.pool.start_redis()
        until(lambda: metric(f.node, "incipit_cachesvc_index_state") == 1, "Redis is back")
        until(lambda: f.log("cachesvc").count("Redis takes the index") > 1, "log line")
        return said


def IncipitQueueGrows(work):
    with Fault(work, "IncipitQueueGrows", worker_args=["--max-seqs", "1", "--max-queue", "64"]) as f:
        before = f.targets.read()
        with concurrent.futures.ThreadPoolExecutor(40) as ex:
            all_of_them = [ex.submit(complete, f.w, prompt(i), 400) for i in range(40)]
            until(lambda: metric(f.w, "incipit_worker_requests_waiting") > 16, "a queue")
            said = f.seen(before, "incipit_worker_requests_waiting")
            expect({r.result()[0] for r in all_of_them} == {200}, "statuses")
        return said


def IncipitPutsDropped(work):
    """The node stands still: what is computed can't be put, and the queue is short."""
    with Fault(work, "IncipitPutsDropped", worker_args=["--put-queue-blocks", "1"]) as f:
        before = f.targets.read()
        for i in range(6):
            expect(complete(f.w, prompt(i, 300))[0] == 200, "a request failed")
        until(lambda: metric(f.w, "incipit_worker_put_dropped_total") > metric(f.w, "incipit_worker_put_block_total"),
              "puts are dropped")
        return f.seen(before, "incipit_worker_put_dropped_total")


def IncipitHitRateLow(work):
    with Fault(work, "IncipitHitRateLow") as f:
        before = f.targets.read()
        for i in range(80):  # a sample a minute: more than one block a second
            expect(complete(f.w, prompt(i + 100, 200), 1)[0] == 200, "a request failed")
        return f.seen(before, "incipit_worker_lookup_blocks_total")


FAULTS = {k: v for k, v in list(globals().items()) if k.startswith("Incipit")}


def main():
    global BUILD, BASE_PORT
    BASE_PORT = free_base(10)
    args = sys.argv[1:]
    if args:
        BUILD = pathlib.Path(args[0]).resolve()
    alerts = re.findall(r"alert: (\w+)", RULES.read_text())
    chosen = [a for a in alerts if len(args) < 2 or a in args[1:]]
    failed = 0
    for alert in chosen:
        work = pathlib.Path(tempfile.mkdtemp(prefix=f"incipit-fault-{alert}-"))
        t0 = time.monotonic()
        try:
            expect(alert in FAULTS, "no fault produces it")
            print(f"ok fault {alert}: {FAULTS[alert](work)} ({time.monotonic() - t0:.0f} s)", flush=True)
            shutil.rmtree(work, ignore_errors=True)
        except Skip as e:
            print(f"skip fault {alert}: {e}", flush=True)
            shutil.rmtree(work, ignore_errors=True)
        except Exception as e:  # noqa: BLE001 - reported, with the folder kept
            failed += 1
            text = str(e) if isinstance(e, (AssertionError, PoolError)) else traceback.format_exc()
            text = text.replace("\n", " | ")
            print(f"FAILED fault {alert}: {text[:1500]} (logs in {work})", flush=True)
    print("# faults complete", flush=True)
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
