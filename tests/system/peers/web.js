// web.js server ADDRESS PORT ECHO_PORT: an HTTP server, as web.py's, and beside it one that echoes plain connections.
// web.js client ADDRESS PORT ECHO_PORT: checks both, over eight HTTP connections here, eight plain ones in a worker thread.
'use strict';
const crypto = require('crypto');
const http = require('http');
const net = require('net');
const { once } = require('events');
const { Worker, isMainThread, workerData } = require('worker_threads');

const [role, host, port, echoPort] = isMainThread ? process.argv.slice(2) : workerData;
const sizes = [0, 1, 1000, 20000, 150000, 1000000];
const sha256 = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');

function pattern(size) {
  const bytes = Buffer.alloc(size);
  for (let i = 0; i < size; i++) bytes[i] = i % 251;
  return bytes;
}

function answer(request, response) {
  response.setHeader('X-Port', port);
  if (request.method === 'GET') {
    const bytes = pattern(Number(request.url.slice(1)));
    response.write(bytes.subarray(0, bytes.length / 2));  // no length beforehand: it goes in chunks
    response.end(bytes.subarray(bytes.length / 2));
    return;
  }
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const body = Buffer.concat(parts);
    response.end(`${body.length} ${sha256(body)}`);
  });
}

async function serve() {
  const echo = net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket)).listen(echoPort, host);
  const web = http.createServer(answer).listen(port, host);
  await Promise.all([once(echo, 'listening'), once(web, 'listening')]);
  console.log('ready');
}

function ask(agent, method, path, body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ agent, host, port, method, path }, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => resolve(Buffer.concat(parts)));
    });
    request.on('error', reject);
    request.end(body);
  });
}

async function browse() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
  const totals = await Promise.all([...sizes, ...sizes, ...sizes, ...sizes].map(async (size) => {
    const got = await ask(agent, 'GET', `/${size}`);
    if (!got.equals(pattern(size))) throw new Error(`${size} bytes came changed`);
    const body = pattern(size).reverse();
    const told = (await ask(agent, 'POST', '/', body)).toString();
    if (told !== `${size} ${sha256(body)}`) throw new Error(`${size} bytes arrived changed: ${told}`);
    return 2 * size;
  }));
  agent.destroy();
  return totals.reduce((a, b) => a + b);
}

async function echoed() {
  const message = crypto.randomBytes(300000);
  const totals = await Promise.all([...Array(8)].map(async () => {
    const socket = net.connect({ host, port: echoPort, noDelay: true });
    const parts = [];
    socket.on('data', (part) => parts.push(part));
    const closed = once(socket, 'close');
    const early = closed.then(() => { throw new Error(`closed before all ${message.length} bytes were written`); });
    early.catch(() => {});
    for (let at = 0; at < message.length; at += 7001) {
      if (!socket.write(message.subarray(at, at + 7001))) await Promise.race([once(socket, 'drain'), early]);
    }
    socket.end();
    await closed;
    const got = Buffer.concat(parts);
    const at = got.findIndex((byte, i) => byte !== message[i]);
    if (!got.equals(message)) throw new Error(`the echo differs: ${got.length} bytes of ${message.length}, from ${at} on`);
    return message.length;
  }));
  return totals.reduce((a, b) => a + b);
}

async function main() {
  if (role === 'server') return serve();
  if (!isMainThread) return console.log(`echoed ${await echoed()}`);
  const worker = new Worker(__filename, { workerData: process.argv.slice(2) });
  const [total, [code]] = await Promise.all([browse(), once(worker, 'exit')]);
  if (code !== 0) throw new Error(`the worker ended with ${code}`);
  console.log(`browsed ${total}`);
}

main().catch((error) => {
  // What a worker prints before exit() is lost: its error goes to the main thread, as once(worker) rejects with it.
  if (!isMainThread) throw error;
  console.error(error);
  process.exit(1);
});
