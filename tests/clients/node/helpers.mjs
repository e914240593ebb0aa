// One helper of an official SDK. Arguments: the helper, "plain" or "streamed", the gateway's address, a key, the model.
// Prints the last text, or the answer that was parsed as JSON. It is run from the folder of the packages.
const [helper, mode, address, apiKey, model] = process.argv.slice(2);
const streamed = mode === 'streamed';
const SAID = { Oslo: 'cold', Rome: 'warm', Lima: 'grey' };
const question = 'How is the weather?';
const messages = [{ role: 'user', content: question }];
const { z } = await import('zod');
const City = z.object({ city: z.string() });
const Report = z.object({ city: z.string(), degrees: z.number() });
const look = async ({ city }) => SAID[city];

const openai = async () => {
  const { default: OpenAI } = await import('openai');
  return new OpenAI({ baseURL: `${address}/v1`, apiKey, maxRetries: 0 });
};
const anthropic = async () => {
  const { default: Anthropic } = await import('@anthropic-ai/sdk');
  return new Anthropic({ baseURL: address, apiKey, maxRetries: 0 });
};

const HELPERS = {
  'openai runTools': async () => {
    const { zodFunction } = await import('openai/helpers/zod');
    const tools = [zodFunction({ name: 'look', parameters: City, function: look })];
    return (await openai()).chat.completions.runTools({ model, messages, tools, stream: streamed }).finalContent();
  },
  'openai chat parse': async () => {
    const { zodResponseFormat } = await import('openai/helpers/zod');
    const asked = { model, messages, response_format: zodResponseFormat(Report, 'report') };
    const chat = (await openai()).chat.completions;
    const said = streamed ? await chat.stream(asked).finalChatCompletion() : await chat.parse(asked);
    return JSON.stringify(said.choices[0].message.parsed);
  },
  'openai responses parse': async () => {
    const { zodTextFormat } = await import('openai/helpers/zod');
    const asked = { model, input: question, text: { format: zodTextFormat(Report, 'report') } };
    const { responses } = await openai();
    const said = streamed ? await responses.stream(asked).finalResponse() : await responses.parse(asked);
    return JSON.stringify(said.output_parsed);
  },
  'anthropic toolRunner': async () => {
    const { betaZodTool } = await import('@anthropic-ai/sdk/helpers/beta/zod');
    const tools = [betaZodTool({ name: 'look', description: 'The weather.', inputSchema: City, run: look })];
    const runner = (await anthropic()).beta.messages.toolRunner({ model, max_tokens: 900, messages, tools, stream: streamed });
    let last;
    for await (const turn of runner) last = streamed ? await turn.finalMessage() : turn;
    return last.content.filter((block) => block.type === 'text').map((block) => block.text).join('');
  },
  'anthropic parse': async () => {
    const { betaZodOutputFormat } = await import('@anthropic-ai/sdk/helpers/beta/zod');
    const asked = { model, max_tokens: 900, messages, output_config: { format: betaZodOutputFormat(Report) } };
    const sdk = (await anthropic()).beta.messages;
    const said = streamed ? await sdk.stream(asked).finalMessage() : await sdk.parse(asked);
    return JSON.stringify(said.parsed_output);
  },
  'google callable tool': async () => {
    const { GoogleGenAI } = await import('@google/genai');
    const sdk = new GoogleGenAI({ apiKey, httpOptions: { baseUrl: address } });
    const tool = {
      tool: async () => ({ functionDeclarations: [{ name: 'look', parametersJsonSchema: z.toJSONSchema(City) }] }),
      callTool: async (calls) => Promise.all(calls.map(async ({ id, name, args }) => (
        { functionResponse: { id, name, response: { output: await look(args) } } }
      ))),
    };
    const asked = { model, contents: question, config: { tools: [tool] } };
    if (!streamed) return (await sdk.models.generateContent(asked)).text;
    let text = '';
    for await (const chunk of await sdk.models.generateContentStream(asked)) text += chunk.text ?? '';
    return text;
  },
};
process.stdout.write(await HELPERS[helper]());
