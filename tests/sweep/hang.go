package main

import (
	"bufio"
	"net"
	"os"
	"strings"
)

func waitsForever(lines *bufio.Reader) {
	for {
		lines.ReadString('\n')
	}
}

func main() {
	link, _ := net.Dial("tcp", strings.TrimPrefix(os.Getenv("NATS_URL"), "nats://"))
	waitsForever(bufio.NewReader(link))
}
