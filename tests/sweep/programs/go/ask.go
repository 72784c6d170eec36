// A customer asks a service for prices, and tries again where no answer comes in time.
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

func connect(name string) *nats.Conn {
	nc, err := nats.Connect(os.Getenv("NATS_URL"), nats.Name(name), nats.ReconnectWait(200*time.Millisecond))
	check(err)
	return nc
}

func main() {
	service, customer := connect("go-service"), connect("go-customer")
	defer service.Close()
	defer customer.Close()
	_, err := service.Subscribe("prices.get", func(m *nats.Msg) {
		number, err := strconv.Atoi(string(m.Data))
		check(err)
		check(m.Respond([]byte(strconv.Itoa(number * number))))
	})
	check(err)
	check(service.FlushTimeout(5 * time.Second))
	for number := 1; number <= 5; number++ {
		if found := price(customer, number); found != strconv.Itoa(number*number) {
			log.Fatalf("%d: %s", number, found)
		}
	}
	fmt.Println("all prices are right")
}

func price(nc *nats.Conn, number int) string {
	for n := 0; n < 10; n++ {
		found, err := nc.Request("prices.get", []byte(strconv.Itoa(number)), 500*time.Millisecond)
		if err == nil {
			return string(found.Data)
		}
		time.Sleep(200 * time.Millisecond)
	}
	log.Fatalf("no price for %d", number)
	return ""
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
