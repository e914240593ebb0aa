// Ask a gateway by Vercel's AI SDK, as a stream.
import { createOpenAI } from "@ai-sdk/openai";
import { streamText } from "ai";

const url = process.env.VELOX_URL ?? "http://127.0.0.1:8080";
const velox = createOpenAI({ baseURL: `${url}/v1`, apiKey: process.env.VELOX_KEY ?? "unused" });

const { textStream } = streamText({ model: velox.chat(process.env.MODEL ?? "gpt-4o-mini"), prompt: "Say hello." });
for await (const text of textStream) process.stdout.write(text);
process.stdout.write("\n");
