// Ask a gateway by OpenAI's SDK for Node.js, as a stream.
import OpenAI from "openai";

const url = process.env.VELOX_URL ?? "http://127.0.0.1:8080";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: process.env.VELOX_KEY ?? "unused" });

const chunks = await client.chat.completions.create({
  model: process.env.MODEL ?? "gpt-4o-mini",
  messages: [{ role: "user", content: "Say hello." }],
  stream: true,
});
for await (const chunk of chunks) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
process.stdout.write("\n");
