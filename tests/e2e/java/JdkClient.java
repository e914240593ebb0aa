import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.io.ByteArrayInputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * Asks a gateway with the JDK's HttpClient as it is by default, which offers h2c with its requests.
 * Prints a line for each answer: what was asked, status, version, length of the body.
 */
public final class JdkClient {
    private static final String CHAT = "{\"model\":\"m\",\"messages\":[]}";
    private static final String STREAM = "{\"model\":\"m\",\"messages\":[],\"stream\":true}";

    private final HttpClient client = HttpClient.newHttpClient();
    private final String base;

    private JdkClient(String base) {
        this.base = base;
    }

    public static void main(String[] arguments) throws Exception {
        JdkClient asking = new JdkClient(arguments[0]);
        asking.tell("get", asking.to("/v1/models").GET());
        asking.tell("post", asking.json(BodyPublishers.ofString(CHAT)));
        byte[] bytes = CHAT.getBytes();
        asking.tell("chunked", asking.json(BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(bytes))));
        asking.tell("expect", asking.json(BodyPublishers.ofString(CHAT)).expectContinue(true));
        asking.tell("stream", asking.json(BodyPublishers.ofString(STREAM)));
        asking.tell("large", asking.to("/v1/files").POST(BodyPublishers.ofByteArray(new byte[300_000])));
        asking.many();
    }

    private HttpRequest.Builder to(String path) {
        return HttpRequest.newBuilder(URI.create(base + path)).timeout(Duration.ofSeconds(30));
    }

    private HttpRequest.Builder json(HttpRequest.BodyPublisher body) {
        return to("/v1/chat/completions").header("Content-Type", "application/json").POST(body);
    }

    private void tell(String what, HttpRequest.Builder request) throws Exception {
        HttpResponse<String> reply = client.send(request.build(), BodyHandlers.ofString());
        System.out.println(what + " " + reply.statusCode() + " " + reply.version() + " " + reply.body().length());
    }

    private void many() {
        List<CompletableFuture<HttpResponse<String>>> asked = new ArrayList<>();
        for (int n = 0; n < 20; n++) {
            asked.add(client.sendAsync(json(BodyPublishers.ofString(CHAT)).build(), BodyHandlers.ofString()));
        }
        long good = asked.stream().filter(each -> each.join().statusCode() == 200).count();
        System.out.println("many " + good);
    }
}
