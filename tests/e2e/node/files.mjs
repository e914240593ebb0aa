// The file helpers of OpenAI's, Anthropic's and Google's SDKs: what they upload, wait for, poll, list and read.
// Arguments: which SDK, the gateway's address, a key. Prints what came of it as JSON.
import { GoogleGenAI, createPartFromUri } from '@google/genai';
import Anthropic, { toFile as anthropicFile } from '@anthropic-ai/sdk';
import OpenAI, { toFile } from 'openai';

const [name, address, apiKey] = process.argv.slice(2);

async function ofOpenAI() {
  const client = new OpenAI({ baseURL: `${address}/v1`, apiKey, maxRetries: 0 });
  const soon = { pollIntervalMs: 1 };
  const text = (letter) => toFile(Buffer.from(letter), `${letter}.txt`);
  const made = await client.files.create({ file: await text('a'), purpose: 'assistants' });
  const file = await client.files.waitForProcessing(made.id, { pollInterval: 1, maxWait: 20_000 });
  const store = await client.vectorStores.create({ name: 'notes', file_ids: [made.id] });
  const alone = await client.vectorStores.files.uploadAndPoll(store.id, await text('b'), soon);
  const files = [await text('c'), await text('d')];
  const several = await client.vectorStores.fileBatches.uploadAndPoll(store.id, { files }, soon);
  const assistant = await client.beta.assistants.create({ model: 'gpt-4.1' });
  let run = await client.beta.threads.createAndRunPoll({ assistant_id: assistant.id }, soon);
  const calls = run.required_action.submit_tool_outputs.tool_calls;
  const outputs = { thread_id: run.thread_id, tool_outputs: calls.map(({ id }) => ({ tool_call_id: id, output: 'cold' })) };
  run = await client.beta.threads.runs.submitToolOutputsAndPoll(run.id, outputs, soon);
  return {
    content: await (await client.files.content(made.id)).text(),
    states: [file.status, alone.status, several.status, run.status],
  };
}

async function ofAnthropic() {
  const client = new Anthropic({ baseURL: address, apiKey, maxRetries: 0 });
  const type = { type: 'text/plain' };
  const file = await client.files.upload({ file: await anthropicFile(Buffer.from('a'), 'a.txt', type) });
  const document = { type: 'document', source: { type: 'file', file_id: file.id } };
  const params = { model: 'claude-opus-4-8', max_tokens: 9, messages: [{ role: 'user', content: [document] }] };
  const answer = await client.messages.create(params);
  const requests = ['a', 'b'].map((custom_id) => ({ custom_id, params }));
  let batch = await client.messages.batches.create({ requests });
  while (batch.processing_status !== 'ended') batch = await client.messages.batches.retrieve(batch.id);
  const results = [];
  for await (const each of await client.messages.batches.results(batch.id)) results.push(each.custom_id);
  const content = await (await client.files.download(file.id)).text();
  await client.files.delete(file.id);
  const gone = await client.files.retrieveMetadata(file.id).catch((error) => error.status);
  return { content, stop: answer.stop_reason, results, gone };
}

async function ofGoogle() {
  const client = new GoogleGenAI({ apiKey, httpOptions: { baseUrl: address } });
  const ask = (file) => client.models.generateContent({
    model: 'gemini-2.5-pro',
    contents: [{ role: 'user', parts: [createPartFromUri(file.uri, file.mimeType), { text: 'What does it say?' }] }],
  });
  const upload = (letter) => client.files.upload({
    file: new Blob([letter], { type: 'text/plain' }),
    config: { displayName: `${letter}.txt` },
  });
  let file = await upload('a');
  const other = await upload('b');
  const states = [file.state];
  const early = await ask(file).catch((error) => error.status);
  while (states.at(-1) === 'PROCESSING') {
    file = await client.files.get({ name: file.name });
    states.push(file.state);
  }
  const { text } = await ask(file);
  const listed = [];
  for await (const each of await client.files.list()) listed.push(each.name);
  await client.files.delete({ name: file.name });
  const gone = await client.files.get({ name: file.name }).catch((error) => error.status);
  return {
    file: file.name, size: file.sizeBytes, title: file.displayName, states, early, text, gone,
    listed: [file, other].map(({ name }) => listed.includes(name)),
  };
}

const SDKS = { openai: ofOpenAI, anthropic: ofAnthropic, google: ofGoogle };
console.log(JSON.stringify(await SDKS[name]()));
