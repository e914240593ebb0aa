// The files of a caller, as Google's, OpenAI's and Anthropic's SDKs list them page by page.
// Arguments: which SDK, the gateway's address, a key. Prints the names or ids as JSON.
import { GoogleGenAI } from '@google/genai';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const [name, address, apiKey] = process.argv.slice(2);

const LISTS = {
  google: () => new GoogleGenAI({ apiKey, httpOptions: { baseUrl: address } }).files.list({ config: { pageSize: 10 } }),
  openai: () => new OpenAI({ baseURL: `${address}/v1`, apiKey, maxRetries: 0 }).files.list({ limit: 10 }),
  anthropic: () => new Anthropic({ baseURL: address, apiKey, maxRetries: 0 }).files.list({ limit: 10 }),
};
const listed = [];
for await (const each of await LISTS[name]()) listed.push(name === 'google' ? each.name : each.id);
console.log(JSON.stringify(listed));
