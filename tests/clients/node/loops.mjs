// One loop with tools by one SDK. Arguments: the SDK, "plain" or "streamed", the gateway's address, a key, the model.
// Prints the last text. It is run from the folder of the packages (loops.mjs is copied there by test_sdks.py).
const [client, mode, address, apiKey, model] = process.argv.slice(2);
const streamed = mode === 'streamed';
const SAID = { Oslo: 'cold', Rome: 'warm', Lima: 'grey' };
const question = 'How is the weather?';
const { z } = await import('zod');
const parameters = z.object({ city: z.string() });
const look = async ({ city }) => SAID[city];

async function aiSdk(languageModel, providerOptions = {}) {
  const { generateText, isStepCount, streamText, tool } = await import('ai');
  const errors = [];
  const asked = {
    model: languageModel, providerOptions, prompt: question, stopWhen: isStepCount(5), maxRetries: 0,
    tools: { look: tool({ description: 'The weather.', inputSchema: parameters, execute: look }) },
    onError: ({ error }) => errors.push(error),
  };
  const answer = streamed ? streamText(asked) : await generateText(asked);
  const text = await answer.text;
  if (errors.length) throw errors[0];
  return text;
}

async function langchain(chatModel) {
  const { createAgent, tool } = await import('langchain');
  const agent = createAgent({
    model: chatModel, tools: [tool(look, { name: 'look', description: 'The weather.', schema: parameters })],
  });
  const asked = { messages: [{ role: 'user', content: question }] };
  if (!streamed) return (await agent.invoke(asked)).messages.at(-1).text;
  const texts = new Map(); // by step of the graph
  for await (const [chunk, from] of await agent.stream(asked, { streamMode: 'messages' })) {
    if (chunk.getType() === 'ai') texts.set(from.langgraph_step, (texts.get(from.langgraph_step) ?? '') + chunk.text);
  }
  return [...texts.values()].at(-1);
}

async function openaiAgents(api) {
  const { Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled, tool } = await import('@openai/agents');
  const { default: OpenAI } = await import('openai');
  setTracingDisabled(true);
  setDefaultOpenAIClient(new OpenAI({ baseURL: `${address}/v1`, apiKey, maxRetries: 0 }));
  setOpenAIAPI(api);
  const agent = new Agent({
    name: 'Weather', instructions: 'Be brief.', model,
    tools: [tool({ name: 'look', description: 'The weather.', parameters, execute: look })],
  });
  const result = await run(agent, question, { stream: streamed });
  if (streamed) {
    for await (const _ of result);
    await result.completed;
  }
  return result.finalOutput;
}

const openai = async () => (await import('@ai-sdk/openai')).createOpenAI({ baseURL: `${address}/v1`, apiKey });
const LOOPS = {
  'ai-sdk openai.chat': async () => aiSdk((await openai()).chat(model)),
  // The provider's default: Responses, which keeps what it has answered.
  'ai-sdk openai': async () => aiSdk((await openai())(model), { openai: { reasoningSummary: 'auto' } }),
  'ai-sdk openai, not stored': async () => aiSdk((await openai())(model), {
    openai: { store: false, include: ['reasoning.encrypted_content'], reasoningSummary: 'auto' },
  }),
  'ai-sdk anthropic': async () => {
    const { createAnthropic } = await import('@ai-sdk/anthropic');
    return aiSdk(createAnthropic({ baseURL: `${address}/v1`, apiKey })(model));
  },
  'ai-sdk anthropic, thinking': async () => {
    const { createAnthropic } = await import('@ai-sdk/anthropic');
    return aiSdk(createAnthropic({ baseURL: `${address}/v1`, apiKey })(model), {
      anthropic: { thinking: { type: 'enabled', budgetTokens: 2000 } },
    });
  },
  'ai-sdk google': async () => {
    const { createGoogleGenerativeAI } = await import('@ai-sdk/google');
    return aiSdk(createGoogleGenerativeAI({ baseURL: `${address}/v1beta`, apiKey })(model), {
      google: { thinkingConfig: { includeThoughts: true } },
    });
  },
  'langchain openai': async () => {
    const { ChatOpenAI } = await import('@langchain/openai');
    return langchain(new ChatOpenAI({ model, apiKey, maxRetries: 0, configuration: { baseURL: `${address}/v1` } }));
  },
  'langchain openai responses': async () => {
    const { ChatOpenAI } = await import('@langchain/openai');
    return langchain(
      new ChatOpenAI({ model, apiKey, maxRetries: 0, useResponsesApi: true, configuration: { baseURL: `${address}/v1` } }),
    );
  },
  'langchain anthropic': async () => {
    const { ChatAnthropic } = await import('@langchain/anthropic');
    return langchain(new ChatAnthropic({ model, apiKey, maxRetries: 0, anthropicApiUrl: address }));
  },
  'langchain google-genai': async () => {
    const { ChatGoogleGenerativeAI } = await import('@langchain/google-genai');
    return langchain(new ChatGoogleGenerativeAI({ model, apiKey, maxRetries: 0, baseUrl: address }));
  },
  'openai-agents responses': async () => openaiAgents('responses'),
  'openai-agents chat': async () => openaiAgents('chat_completions'),
};
process.stdout.write(await LOOPS[client]());
