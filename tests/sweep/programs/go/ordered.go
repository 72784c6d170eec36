// A log that is read by an ordered consumer, line by line as it is written, with -deadline not for ever.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

const messages = 5

func connect(name string) (*nats.Conn, nats.JetStreamContext) {
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.Name(name), nats.ReconnectWait(200*time.Millisecond))
	check(err)
	js, err := nc.JetStream()
	check(err)
	return nc, js
}

func main() {
	deadline := flag.Duration("deadline", time.Hour, "the longest wait for a line")
	flag.Parse()
	writing, writer := connect("go-writer")
	defer writing.Close()
	reading, reader := connect("go-ordered")
	defer reading.Close()
	_, err := writer.AddStream(&nats.StreamConfig{Name: "LOG", Subjects: []string{"log.line"}})
	check(err)
	lines, err := reader.SubscribeSync("log.line", nats.OrderedConsumer(), nats.IdleHeartbeat(500*time.Millisecond))
	check(err)
	for due := 1; due <= messages; due++ {
		_, err = writer.Publish("log.line", []byte(strconv.Itoa(due)))
		check(err)
		line, err := lines.NextMsg(*deadline)
		check(err)
		if string(line.Data) != strconv.Itoa(due) {
			log.Fatalf("line %s came where %d was due", line.Data, due)
		}
	}
	fmt.Println("read", messages)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
