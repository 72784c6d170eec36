// Reads messages from f.>, and prints what nats.go makes of their headers: subject and [name, values] of each.
// Arguments: URL, number of messages.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

type seen struct {
	Headers [][2]any `json:"headers"`
	Any     []string `json:"any"`
}

func main() {
	left, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	nc, err := nats.Connect(os.Args[1], nats.NoReconnect())
	if err != nil {
		panic(err)
	}
	sub, err := nc.SubscribeSync("f.>")
	if err != nil {
		panic(err)
	}
	if err := nc.Flush(); err != nil {
		panic(err)
	}
	fmt.Fprintln(os.Stderr, "ready")
	found := map[string]seen{}
	for ; left > 0; left-- {
		message, err := sub.NextMsg(30e9)
		if err != nil {
			panic(err)
		}
		one := seen{Headers: [][2]any{}, Any: []string{}}
		for name, values := range message.Header {
			one.Headers = append(one.Headers, [2]any{name, values})
			if strings.EqualFold(strings.TrimSpace(name), "Nats-Sender-User") {
				one.Any = append(one.Any, values...)
			}
		}
		found[message.Subject] = one
	}
	text, err := json.Marshal(found)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
	nc.Close()
}
