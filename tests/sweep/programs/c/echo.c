/* A service that hands on each order that it gets, and the customer who sends the next one after that.
 * With the argument "threads" it uses the client's own threads, and libuv otherwise. */
#include <nats/nats.h>
#include <nats/adapters/libuv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ORDERS 5
#define TURN 20 /* ms */
#define TURNS_OF_A_TRY 5
#define TURNS 250 /* for an order, then the program fails */

static natsConnection *nc;
static volatile int handed_on = 0; /* the number of the last order */

static void check(natsStatus s)
{
    if (s != NATS_OK) {
        fprintf(stderr, "%s\n", natsStatus_GetText(s));
        exit(1);
    }
}

static void on_order(natsConnection *c, natsSubscription *sub, natsMsg *order, void *closure)
{
    natsConnection_Publish(c, "orders.handed_on", natsMsg_GetData(order), natsMsg_GetDataLength(order));
    natsMsg_Destroy(order);
}

static void on_handed_on(natsConnection *c, natsSubscription *sub, natsMsg *order, void *closure)
{
    int number = atoi(natsMsg_GetData(order));
    if (number == handed_on + 1)
        handed_on = number;
    natsMsg_Destroy(order);
}

/* Sends the order that is due, until it was handed on.  Returns 0 after the last one. */
static int turn(void)
{
    static int number = 0, turns = 0;
    char order[256];
    if (handed_on == ORDERS)
        return 0;
    if (number != handed_on + 1) {
        number = handed_on + 1;
        turns = 0;
    }
    if (turns > TURNS)
        check(NATS_TIMEOUT);
    if (turns++ % TURNS_OF_A_TRY == 0) {
        snprintf(order, sizeof order, "%d %0200d", number, 0);
        natsConnection_PublishString(nc, "orders.new", order);
    }
    return 1;
}

static void on_timer(uv_timer_t *timer)
{
    if (!turn())
        uv_stop(timer->loop);
}

int main(int argc, char **argv)
{
    natsOptions *opts = NULL;
    natsSubscription *sub = NULL;
    uv_loop_t *loop = uv_default_loop();
    uv_timer_t timer;
    int threads = argc > 1 && strcmp(argv[1], "threads") == 0;

    natsLibuv_Init();
    check(natsOptions_Create(&opts));
    natsOptions_SetURL(opts, getenv("NATS_URL"));
    natsOptions_SetName(opts, "c-orders");
    natsOptions_SetReconnectWait(opts, 100);
    if (!threads) {
        natsLibuv_SetThreadLocalLoop(loop);
        check(natsOptions_SetEventLoop(opts, loop, natsLibuv_Attach, natsLibuv_Read, natsLibuv_Write,
                                       natsLibuv_Detach));
    }
    check(natsConnection_Connect(&nc, opts));
    check(natsConnection_Subscribe(&sub, nc, "orders.new", on_order, NULL));
    check(natsConnection_Subscribe(&sub, nc, "orders.handed_on", on_handed_on, NULL));
    if (threads) {
        while (turn())
            nats_Sleep(TURN);
    } else {
        uv_timer_init(loop, &timer);
        uv_timer_start(&timer, on_timer, 0, TURN);
        uv_run(loop, UV_RUN_DEFAULT);
    }
    printf("handed on %d orders\n", handed_on);
    return 0;
}
