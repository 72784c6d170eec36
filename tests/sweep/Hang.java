import java.net.Socket;
import java.net.URI;

class Hang {
    static void waitsForever(Socket link) throws Exception {
        while (link.getInputStream().read() >= 0) {
        }
    }

    public static void main(String[] arguments) throws Exception {
        var url = URI.create(System.getenv("NATS_URL"));
        var link = new Socket(url.getHost(), url.getPort());
        link.getOutputStream().write("CONNECT {}\r\n".getBytes());
        waitsForever(link);
    }
}
