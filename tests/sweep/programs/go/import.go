// An importer that publishes a batch and waits for all acks together, with -deadline not for ever.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

func main() {
	deadline := flag.Duration("deadline", time.Hour, "the longest wait for all acks")
	flag.Parse()
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.Name("go-importer"))
	check(err)
	defer nc.Close()
	js, err := nc.JetStream()
	check(err)
	_, err = js.AddStream(&nats.StreamConfig{Name: "IMPORT", Subjects: []string{"import.*"}})
	check(err)
	var acks []nats.PubAckFuture
	for n := 0; n < 5; n++ {
		ack, err := js.PublishAsync(fmt.Sprintf("import.%d", n), []byte("row"))
		check(err)
		acks = append(acks, ack)
	}
	select {
	case <-js.PublishAsyncComplete():
		for _, ack := range acks {
			select {
			case <-ack.Ok():
			case err := <-ack.Err():
				log.Fatal(err)
			}
		}
		fmt.Println("all rows are stored")
	case <-time.After(*deadline):
		log.Fatal("some rows are not stored")
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
