// Web server ADDRESS PORT ECHO_PORT: an HttpServer, as web.py's, and beside it a selector that echoes plain connections.
// Web client ADDRESS PORT ECHO_PORT FILE: checks both, with an HttpClient and with channels; FILE is what it echoes.
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;

public class Web {
  static final int[] SIZES = {0, 1, 1000, 20000, 150000, 1000000};

  static byte[] pattern(int size) {
    byte[] bytes = new byte[size];
    for (int i = 0; i < size; i++) bytes[i] = (byte) (i % 251);
    return bytes;
  }

  static String summary(byte[] body) {
    try {
      return body.length + " " + HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
    } catch (java.security.NoSuchAlgorithmException impossible) {
      throw new AssertionError(impossible);
    }
  }

  static void answer(HttpExchange exchange) throws IOException {
    byte[] body = exchange.getRequestBody().readAllBytes();
    boolean get = exchange.getRequestMethod().equals("GET");
    byte[] answer = get ? pattern(Integer.parseInt(exchange.getRequestURI().getPath().substring(1))) : summary(body).getBytes();
    exchange.getResponseHeaders().add("X-Port", "" + exchange.getLocalAddress().getPort());
    exchange.sendResponseHeaders(200, 0); // no length beforehand: it goes in chunks
    try (var out = exchange.getResponseBody()) {
      out.write(answer);
    }
  }

  static class Echo {
    final ByteBuffer waiting = ByteBuffer.allocateDirect(1 << 16);
    boolean ended;

    /** What may be waited for next; null: all is echoed. */
    Integer step(SocketChannel channel) throws IOException {
      if (!ended) ended = channel.read(waiting) < 0;
      waiting.flip();
      channel.write(waiting);
      waiting.compact();
      if (ended && waiting.position() == 0) return null;
      return (ended || !waiting.hasRemaining() ? 0 : SelectionKey.OP_READ) | (waiting.position() > 0 ? SelectionKey.OP_WRITE : 0);
    }
  }

  static void echoForEver(InetSocketAddress address) throws IOException {
    Selector selector = Selector.open();
    ServerSocketChannel listener = ServerSocketChannel.open().bind(address);
    listener.configureBlocking(false);
    listener.register(selector, SelectionKey.OP_ACCEPT);
    System.out.println("ready");
    while (true) {
      selector.select();
      for (SelectionKey key : selector.selectedKeys()) {
        if (key.isAcceptable()) {
          for (SocketChannel channel; (channel = listener.accept()) != null;) {
            channel.configureBlocking(false);
            channel.register(selector, SelectionKey.OP_READ, new Echo());
          }
        } else {
          Integer next = ((Echo) key.attachment()).step((SocketChannel) key.channel());
          if (next == null) key.channel().close();
          else key.interestOps(next);
        }
      }
      selector.selectedKeys().clear();
    }
  }

  static HttpRequest.Builder request(String base, String path) {
    return HttpRequest.newBuilder(URI.create(base + path));
  }

  static CompletableFuture<Integer> browse(HttpClient client, String base, int size) {
    byte[] body = pattern(size);
    var got = client.sendAsync(request(base, "/" + size).build(), HttpResponse.BodyHandlers.ofByteArray());
    var posted = client.sendAsync(request(base, "/").POST(HttpRequest.BodyPublishers.ofByteArray(body)).build(), HttpResponse.BodyHandlers.ofString());
    return got.thenCombine(posted, (bytes, told) -> {
      if (!Arrays.equals(bytes.body(), body)) throw new IllegalStateException(size + " bytes came changed");
      if (!told.body().equals(summary(body))) throw new IllegalStateException(size + " bytes arrived changed: " + told.body());
      return 2 * size;
    });
  }

  static class Echoed {
    final ByteBuffer got;
    long sent;

    Echoed(int size) {
      got = ByteBuffer.allocate(size + 1);
    }
  }

  /** Connects, sends the file by transferTo and reads what comes back, all as the selector says. */
  static void echoed(InetSocketAddress address, Path path, int connections) throws IOException {
    byte[] expected = Files.readAllBytes(path);
    Selector selector = Selector.open();
    FileChannel file = FileChannel.open(path);
    for (int i = 0; i < connections; i++) {
      SocketChannel channel = SocketChannel.open();
      channel.configureBlocking(false);
      channel.connect(address);
      channel.register(selector, SelectionKey.OP_CONNECT, new Echoed(expected.length));
    }
    for (int open = connections; open > 0;) {
      if (selector.select(20_000) == 0) throw new IllegalStateException("nothing for 20 s");
      for (SelectionKey key : selector.selectedKeys()) {
        SocketChannel channel = (SocketChannel) key.channel();
        Echoed state = (Echoed) key.attachment();
        if (key.isConnectable() && channel.finishConnect()) key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
        if (key.isWritable() && (state.sent += file.transferTo(state.sent, expected.length - state.sent, channel)) == expected.length) {
          channel.shutdownOutput();
          key.interestOps(SelectionKey.OP_READ);
        }
        if (key.isReadable() && channel.read(state.got) < 0) {
          if (!Arrays.equals(Arrays.copyOf(state.got.array(), state.got.position()), expected)) throw new IllegalStateException("the echo differs");
          channel.close();
          open--;
        }
      }
      selector.selectedKeys().clear();
    }
  }

  public static void main(String[] arguments) throws Exception {
    String host = arguments[1];
    InetSocketAddress web = new InetSocketAddress(host, Integer.parseInt(arguments[2])), echo = new InetSocketAddress(host, Integer.parseInt(arguments[3]));
    if (arguments[0].equals("server")) {
      HttpServer server = HttpServer.create(web, 64);
      server.createContext("/", Web::answer);
      server.setExecutor(Executors.newFixedThreadPool(4));
      server.start();
      echoForEver(echo);
    }
    HttpClient client = HttpClient.newHttpClient();
    String base = "http://" + host + ":" + web.getPort();
    List<CompletableFuture<Integer>> all = new ArrayList<>();
    for (int round = 0; round < 3; round++) {
      for (int size : SIZES) all.add(browse(client, base, size));
    }
    int total = 0;
    for (var one : all) total += one.get();
    echoed(echo, Path.of(arguments[4]), 8);
    System.out.println("browsed " + total);
    System.exit(0);
  }
}
