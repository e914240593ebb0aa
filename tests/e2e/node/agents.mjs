// An agent's loop with each SDK for Node: two calls at once with reasoning, their results, an answer.
// Arguments: the gateway's address, a key, the model. Prints a line of JSON for each SDK, plain and streamed.
import { generateText, isStepCount, jsonSchema, streamText, tool } from 'ai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createGoogleGenerativeAI } from '@ai-sdk/google';
import { createOpenAI } from '@ai-sdk/openai';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const [address, apiKey, model] = process.argv.slice(2);
const schema = {
  type: 'object',
  properties: { city: { type: 'string' }, days: { type: 'integer', minimum: 2 } },
  required: ['city', 'days'],
};
const print = (name, found) => console.log(JSON.stringify({ name, ...found }));

// The AI SDK runs the whole loop itself.
const providers = {
  'ai-chat': [createOpenAI({ baseURL: `${address}/v1`, apiKey }).chat(model), { openai: { reasoningEffort: 'low' } }],
  'ai-responses': [
    createOpenAI({ baseURL: `${address}/v1`, apiKey }).responses(model),
    { openai: { reasoningEffort: 'low', reasoningSummary: 'auto', forceReasoning: true, store: false, include: ['reasoning.encrypted_content'] } },
  ],
  'ai-anthropic': [
    createAnthropic({ baseURL: `${address}/v1`, apiKey })(model),
    { anthropic: { thinking: { type: 'enabled', budgetTokens: 2000 } } },
  ],
  'ai-google': [
    createGoogleGenerativeAI({ baseURL: `${address}/v1beta`, apiKey })(model),
    { google: { thinkingConfig: { includeThoughts: true, thinkingLevel: 'low' } } },
  ],
};
for (const [name, [languageModel, providerOptions]] of Object.entries(providers)) {
  for (const stream of [false, true]) {
    const calls = [];
    const execute = async (given) => (calls.push(given), 'sunny');
    const tools = { weather: tool({ inputSchema: jsonSchema(schema), execute }) };
    const errors = [];
    const asked = {
      model: languageModel, providerOptions, tools, prompt: 'Weather?', stopWhen: isStepCount(3), maxRetries: 0,
      maxOutputTokens: 4000, onError: ({ error }) => errors.push(String(error)),
    };
    const answer = stream ? streamText(asked) : await generateText(asked);
    const usage = await (answer.totalUsage ?? answer.usage);
    print(name, { stream, calls, errors, text: await answer.text, steps: (await answer.steps).length, outputTokens: usage.outputTokens });
  }
}

const client = { apiKey, maxRetries: 0 };
const openai = new OpenAI({ ...client, baseURL: `${address}/v1` });
const anthropic = new Anthropic({ ...client, baseURL: address });
for (const stream of [false, true]) {
  const calls = [];
  const tools = [{ type: 'function', function: { name: 'weather', parameters: schema } }];
  let messages = [{ role: 'user', content: 'Weather?' }];
  const ask = async () => {
    const asked = { model, messages, tools, reasoning_effort: 'low' };
    if (!stream) return openai.chat.completions.create(asked);
    return openai.chat.completions.stream({ ...asked, stream_options: { include_usage: true } }).finalChatCompletion();
  };
  let answer = await ask();
  const said = answer.choices[0].message;
  for (const call of said.tool_calls) calls.push(JSON.parse(call.function.arguments));
  messages = [...messages, said, ...said.tool_calls.map((call) => ({ role: 'tool', tool_call_id: call.id, content: 'sunny' }))];
  answer = await ask();
  print('openai', { stream, calls, errors: [], text: answer.choices[0].message.content, steps: 2, outputTokens: answer.usage.completion_tokens });
}
for (const stream of [false, true]) {
  const calls = [];
  let messages = [{ role: 'user', content: 'Weather?' }];
  const ask = async () => {
    const asked = {
      model, messages, max_tokens: 4000, tools: [{ name: 'weather', input_schema: schema }],
      thinking: { type: 'enabled', budget_tokens: 2000 },
    };
    return stream ? anthropic.messages.stream(asked).finalMessage() : anthropic.messages.create(asked);
  };
  let answer = await ask();
  const used = answer.content.filter((block) => block.type === 'tool_use');
  for (const block of used) calls.push(block.input);
  const results = used.map((block) => ({ type: 'tool_result', tool_use_id: block.id, content: 'sunny' }));
  messages = [...messages, { role: 'assistant', content: answer.content }, { role: 'user', content: results }];
  answer = await ask();
  const text = answer.content.filter((block) => block.type === 'text').map((block) => block.text).join('');
  print('anthropic', { stream, calls, errors: [], text, steps: 2, outputTokens: answer.usage.output_tokens });
}
