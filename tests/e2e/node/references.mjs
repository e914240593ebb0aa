// The Vercel AI SDK as it is by default: `openai(model)` is Responses, and what was said comes back by reference.
// Arguments: the gateway's address, a key, the model. Prints a line of JSON for a plain and a streamed conversation.
import { generateText, isStepCount, jsonSchema, streamText, tool } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';

const [address, apiKey, name] = process.argv.slice(2);
const model = createOpenAI({ baseURL: `${address}/v1`, apiKey })(name);
for (const stream of [false, true]) {
  const errors = [];
  const tools = { look: tool({ inputSchema: jsonSchema({ type: 'object', properties: {} }), execute: async () => '42' }) };
  const ask = async (messages) => {
    const asked = { model, tools, messages, stopWhen: isStepCount(3), maxRetries: 0, onError: ({ error }) => errors.push(String(error)) };
    return stream ? streamText(asked) : generateText(asked);
  };
  const texts = [];
  const messages = [];
  for (const text of ['Hi', 'Again']) {
    messages.push({ role: 'user', content: text });
    const answer = await ask(messages);
    texts.push(await answer.text);
    messages.push(...(await answer.responseMessages));
  }
  console.log(JSON.stringify({ stream, errors, texts }));
}
