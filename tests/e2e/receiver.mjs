#!/usr/bin/env node
// A receiver as many are written: node:http, nothing else. receiver.mjs KEEP_ALIVE_MS: how long it keeps an idle connection.
// POST does what the path says; GET /effects tells how often each key was done, and the length of what came with it.
import { createServer } from "node:http";

const effects = {};

function act(request, body) {
  const key = request.headers["idempotency-key"];
  effects[key] ??= { count: 0, bytes: body.length };
  effects[key].count++;
  return JSON.stringify({ id: `n-${key}` });
}

const deeds = {
  "/plain": (response, told) => response.setHeader("Content-Type", "application/json").end(told),
  "/chunks": (response, told) => {
    response.writeHead(201, { "Content-Type": "application/json", Trailer: "X-Sum" });
    for (const letter of told) response.write(letter);
    response.addTrailers({ "X-Sum": "1" });
    response.end();
  },
  "/hints": (response, told) => response.writeEarlyHints({ link: "</a.css>; rel=preload" }, () => deeds["/plain"](response, told)),
  "/destroyed": (response) => response.socket.destroy(),
  "/half": (response, told) => {
    response.writeHead(200, { "Content-Length": told.length });
    response.write(told.slice(0, 3), () => response.socket.destroy());
  },
  "/thrown": (response) => response.writeHead(500).end("it threw after it had acted"),
};

const server = createServer({ keepAliveTimeout: Number(process.argv[2]) }, (request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    if (request.url === "/effects") return response.end(JSON.stringify(effects));
    deeds[request.url](response, act(request, Buffer.concat(chunks)));
  });
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
