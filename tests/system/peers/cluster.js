// cluster.js ADDRESS PORT: Node's cluster of two workers that serve TCP and UDP. The master accepts, and passes the connections on.
const cluster = require('cluster'), dgram = require('dgram'), net = require('net');
const [address, port] = process.argv.slice(2);
if (cluster.isPrimary) {
  let served = 0;
  for (let i = 0; i < 2; i++) cluster.fork();
  cluster.on('listening', () => { if (++served === 4) console.log('ready'); });
} else {
  net.createServer(connection => {
    connection.on('data', line => connection.end(`${cluster.worker.id} ${String(line).toUpperCase()}`));
  }).listen(port, address);
  const datagrams = dgram.createSocket('udp4');
  datagrams.on('message', (text, from) => datagrams.send(String(text).toUpperCase(), from.port, from.address));
  datagrams.bind(port, address);
}
