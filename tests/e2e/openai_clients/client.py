#!/usr/bin/env python3
"""The official openai package (pip) against a running worker or balancer, unmodified.

OPENAI_BASE_URL (with /v1) and OPENAI_API_KEY say where. Exit 0: all passed; else what failed is printed.
"""
import os
import sys
import traceback

import openai

client = openai.OpenAI(timeout=120, max_retries=0)
# A cluster of several workers may answer each request elsewhere, so nothing here depends on which one.
MODEL = client.models.list().data[0].id
QUESTION = [{"role": "user", "content": "Write one sentence about the sea."}]


def test_models():
    m = client.models.retrieve(MODEL)
    assert m.id == MODEL and m.object == "model", m
    # Extra fields come through the client as they are.
    assert len(m.model_extra["incipit"]["namespace"]) == 64, m


def test_chat():
    r = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, seed=1)
    c = r.choices[0]
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-"), r
    assert c.message.role == "assistant" and c.message.content, c
    assert c.finish_reason in ("stop", "length"), c
    u = r.usage
    assert u.total_tokens == u.prompt_tokens + u.completion_tokens and 1 <= u.completion_tokens <= 12, u
    assert 0 <= u.prompt_tokens_details.cached_tokens < u.prompt_tokens, u


def test_chat_is_deterministic():
    kw = dict(model=MODEL, messages=QUESTION, max_completion_tokens=16, temperature=0.9, top_p=0.9, seed=7)
    a, b = (client.chat.completions.create(**kw).choices[0].message.content for _ in range(2))
    assert a == b, (a, b)


def test_chat_content_parts():
    parts = [{"role": "user", "content": [{"type": "text", "text": "Write one sentence about the sea."}]}]
    kw = dict(model=MODEL, max_tokens=8, temperature=0)
    a = client.chat.completions.create(messages=QUESTION, **kw)
    b = client.chat.completions.create(messages=parts, **kw)
    assert a.choices[0].message.content == b.choices[0].message.content, (a, b)


def test_chat_stream_equals_answer():
    kw = dict(model=MODEL, messages=QUESTION, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**kw)
    text, role, reason, usage, n = "", None, None, None, 0
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **kw):
        n += 1
        assert chunk.object == "chat.completion.chunk", chunk
        if chunk.usage:
            assert not chunk.choices, chunk
            usage = chunk.usage
        for c in chunk.choices:
            role = role or c.delta.role
            text += c.delta.content or ""
            reason = reason or c.finish_reason
    assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
    assert role == "assistant" and reason == whole.choices[0].finish_reason, (role, reason)
    assert usage and usage.completion_tokens == whole.usage.completion_tokens, usage
    assert n > 3, n


def test_chat_logprobs():
    r = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4, temperature=0, logprobs=True,
                                       top_logprobs=3)
    content = r.choices[0].logprobs.content
    assert len(content) == r.usage.completion_tokens, content
    for t in content:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3, t
        # Greedy: the chosen token is the likeliest.
        assert t.top_logprobs[0].token == t.token and abs(t.top_logprobs[0].logprob - t.logprob) < 1e-6, t
        assert [x.logprob for x in t.top_logprobs] == sorted((x.logprob for x in t.top_logprobs), reverse=True), t


def test_chat_stop():
    r = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=40, temperature=0)
    word = r.choices[0].message.content.split()[2]
    s = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=40, temperature=0, stop=[word])
    assert word not in s.choices[0].message.content and s.choices[0].finish_reason == "stop", s
    assert r.choices[0].message.content.startswith(s.choices[0].message.content), (r, s)


def test_completion():
    r = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0)
    assert r.object == "text_completion" and r.choices[0].text, r
    assert r.usage.completion_tokens <= 4, r


def test_completion_stream_equals_answer():
    kw = dict(model=MODEL, prompt="Once upon a time", max_tokens=16, temperature=0)
    whole = client.completions.create(**kw).choices[0].text
    text = "".join(c.choices[0].text for c in client.completions.create(stream=True, **kw) if c.choices)
    assert text == whole, (text, whole)


def test_completion_echo_logprobs():
    prompt = "The capital of France is Paris."
    r = client.completions.create(model=MODEL, prompt=prompt, max_tokens=0, temperature=0, echo=True, logprobs=2)
    c = r.choices[0]
    lp = c.logprobs
    assert c.text == prompt, c
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset), lp
    assert len(lp.tokens) == r.usage.prompt_tokens and r.usage.completion_tokens == 0, r.usage
    assert lp.token_logprobs[0] is None and all(x <= 0 for x in lp.token_logprobs[1:]), lp
    for token, offset in zip(lp.tokens, lp.text_offset):
        assert prompt[offset:].startswith(token), (token, offset)


def test_completion_token_ids_and_lists():
    kw = dict(model=MODEL, max_tokens=4, temperature=0)
    ids = client.post("/../tokenize", body={"prompt": "The capital of France is"}, cast_to=object)["tokens"]
    text = client.completions.create(prompt="The capital of France is", **kw).choices[0].text
    assert client.completions.create(prompt=ids, **kw).choices[0].text == text
    both = client.completions.create(prompt=["The capital of France is", "Once upon a time"], **kw)
    assert sorted(c.index for c in both.choices) == [0, 1] and both.choices[0].text == text, both
    assert client.completions.create(prompt=[ids, ids], **kw).choices[1].text == text
    back = client.post("/../detokenize", body={"tokens": ids}, cast_to=object)
    assert "The capital of France is" in back["prompt"], back


def expect_bad_request(what, **kw):
    kw.setdefault("messages", QUESTION)
    kw.setdefault("max_tokens", 4)
    try:
        client.chat.completions.create(model=MODEL, **kw)
    except openai.BadRequestError as e:
        assert what in str(e), f"{e} does not name {what}"
        return e
    raise AssertionError(f"{what} was taken")


def test_refused_fields():
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    expect_bad_request("tools", tools=[tool])
    expect_bad_request("response_format", response_format={"type": "json_object"})
    expect_bad_request("logit_bias", logit_bias={"5": 10})
    expect_bad_request("n", n=2)
    expect_bad_request("presence_penalty", presence_penalty=0.5)
    expect_bad_request("temperature", temperature=-1)
    expect_bad_request("no_such_field", extra_body={"no_such_field": 1})
    expect_bad_request("messages[0]", messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}])
    # What changes nothing is taken.
    client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=1, n=1, presence_penalty=0, user="me",
                                   metadata={"a": "b"}, response_format={"type": "text"}, logit_bias={})


def test_too_long_is_an_error():
    e = expect_bad_request("token", messages=[{"role": "user", "content": "word " * 40000}])
    assert e.code == "context_length_exceeded", e.code


def test_unknown_path():
    try:
        client.embeddings.create(model=MODEL, input="x")
    except openai.NotFoundError:
        return
    raise AssertionError("embeddings exist")


def test_abort_mid_stream():
    for _ in range(3):
        stream = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2000, temperature=0,
                                                stream=True, extra_body={"ignore_eos": True})
        for i, _chunk in enumerate(stream):
            if i == 5:
                break
        stream.close()
    # The worker goes on serving, at once: the aborted ones do not have to run out.
    r = client.with_options(timeout=20).chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4)
    assert r.choices[0].message.content is not None, r


def main():
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_") and (len(sys.argv) < 2 or n in sys.argv)]
    failed = 0
    for name, f in tests:
        try:
            f()
            print(f"ok   {name}")
        except Exception:  # noqa: BLE001 - every failure is reported
            failed += 1
            print(f"FAIL {name}")
            traceback.print_exc()
    print(f"openai {openai.__version__} (pip): {len(tests) - failed} passed, {failed} failed, at {os.environ.get('OPENAI_BASE_URL')}")
    return 1 if failed else 0


sys.exit(main())
