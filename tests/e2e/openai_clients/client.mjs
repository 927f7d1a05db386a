// The official openai package (npm) against a running worker or balancer, unmodified.
//
// OPENAI_BASE_URL (with /v1) and OPENAI_API_KEY say where. Exit 0: all passed; else what failed is printed.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const client = new OpenAI({ maxRetries: 0, timeout: 120_000 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: 'user', content: 'Write one sentence about the sea.' }];

async function refused(what, fields) {
  try {
    await client.chat.completions.create({ model, messages, max_tokens: 4, ...fields });
  } catch (e) {
    assert.ok(e instanceof OpenAI.BadRequestError, String(e));
    assert.ok(e.message.includes(what), `${e.message} does not name ${what}`);
    return e;
  }
  assert.fail(`${what} was taken`);
}

const tests = {
  async chat() {
    const r = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
    assert.equal(r.object, 'chat.completion');
    assert.equal(r.choices[0].message.role, 'assistant');
    assert.ok(r.choices[0].message.content);
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert.ok(r.usage.prompt_tokens_details.cached_tokens >= 0);
  },
  async streamEqualsAnswer() {
    const body = { model, messages, max_tokens: 24, temperature: 0 };
    const whole = await client.chat.completions.create(body);
    let text = '', usage = null;
    const stream = await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? '';
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async streamHelper() {
    // The package's own accumulator is stricter about the order of chunks than a loop.
    const runner = client.chat.completions.stream({ model, messages, max_tokens: 12, temperature: 0 });
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.role, 'assistant');
    assert.ok(['stop', 'length'].includes(final.choices[0].finish_reason));
  },
  async chatLogprobs() {
    const r = await client.chat.completions.create({ model, messages, max_tokens: 3, temperature: 0, logprobs: true, top_logprobs: 2 });
    const content = r.choices[0].logprobs.content;
    assert.equal(content.length, r.usage.completion_tokens);
    for (const t of content) assert.equal(t.top_logprobs.length, 2);
  },
  async completions() {
    const r = await client.completions.create({ model, prompt: 'The capital of France is', max_tokens: 4, temperature: 0 });
    assert.equal(r.object, 'text_completion');
    let text = '';
    for await (const c of await client.completions.create({ model, prompt: 'The capital of France is', max_tokens: 4, temperature: 0, stream: true }))
      text += c.choices[0]?.text ?? '';
    assert.equal(text, r.choices[0].text);
  },
  async echoLogprobs() {
    const prompt = 'The capital of France is Paris.';
    const r = await client.completions.create({ model, prompt, max_tokens: 0, echo: true, logprobs: 1 });
    assert.equal(r.choices[0].text, prompt);
    const lp = r.choices[0].logprobs;
    assert.equal(lp.token_logprobs[0], null);
    assert.equal(lp.tokens.join(''), prompt);
  },
  async refusedFields() {
    await refused('tools', { tools: [{ type: 'function', function: { name: 'f', parameters: {} } }] });
    await refused('response_format', { response_format: { type: 'json_object' } });
    await refused('n', { n: 2 });
    await refused('no_such_field', { no_such_field: 1 });
    await refused('messages', { messages: [] });
  },
  async tooLongIsAnError() {
    const e = await refused('token', { messages: [{ role: 'user', content: 'word '.repeat(40000) }] });
    assert.equal(e.code, 'context_length_exceeded');
  },
  async unknownPath() {
    await assert.rejects(client.embeddings.create({ model, input: 'x' }), OpenAI.NotFoundError);
  },
  async abortMidStream() {
    for (let k = 0; k < 3; k++) {
      const stream = await client.chat.completions.create({ model, messages, max_tokens: 2000, stream: true, ignore_eos: true });
      let n = 0;
      for await (const _ of stream) if (++n === 5) break; // leaving the loop aborts the request
      assert.ok(stream.controller.signal.aborted);
    }
    const r = await client.chat.completions.create({ model, messages, max_tokens: 4 }, { timeout: 20_000 });
    assert.ok(r.choices[0].message.content !== null);
  },
};

let failed = 0;
for (const [name, run] of Object.entries(tests)) {
  try {
    await run();
    console.log(`ok   ${name}`);
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}\n${e.stack ?? e}`);
  }
}
console.log(`openai (npm): ${Object.keys(tests).length - failed} passed, ${failed} failed, at ${process.env.OPENAI_BASE_URL}`);
process.exit(failed ? 1 : 0);
