/* A server that knows the truth: it streams chat completions and logs when it handed each token to the kernel.

   token_server FIRST_MS GAP_MS SPREAD LOG_FOLDER [FREEZE_AFTER FREEZE_MS]

   Prints "port N" once it listens on 127.0.0.1. Any POST gets max_tokens tokens, one server-sent event per HTTP chunk
   per send(): the first after FIRST_MS, then one every GAP_MS, lateness never adding up. They have the form of chat
   completions, or of plain ones under /v1/completions. SPREAD 1 shifts the phase of each stream, SPREAD 0 makes all
   streams send at the same instants. FREEZE_AFTER: once that many tokens are out, all open streams stand still for
   FREEZE_MS and then go on, later by as much.

   SIGTERM ends it and writes two files: tokens.bin (struct token, as below) and requests.txt, in which line
   token.request has the kernel's receive stamp of the read that completed the request, and its x-request-id. */

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FDS 65536
#define MAX_REQUESTS (1 << 20)
#define MAX_TOKENS (1L << 26) /* virtual memory; only what is used is touched */
#define ID_LENGTH 80
#define GOLDEN 0.6180339887498949
#define START "data: {\"id\":\"chatcmpl-%032x\",\"object\":\"chat.completion.chunk\",\"created\":1735689600," \
              "\"model\":\"bench\","
#define WORD "\"delta\":{\"content\":\" word\"}"
#define TEXT "\"text\":\" word\"" /* of /v1/completions */

/* Instants are CLOCK_REALTIME ns, the clock of the kernel's receive stamps. The truth lies between `before` and `after`
   the send() call: where these are far apart, this process was held up in between. */
struct token { int32_t request, seq; int64_t due, before, after; };

struct connection {
    char *in; size_t have, room;        /* bytes of a request that is not whole yet */
    int64_t arrived;                    /* of the latest of them */
    uint32_t life;                      /* counts the uses of this descriptor, so that old timers are told apart */
    int32_t request, seq, tokens;       /* the answer in progress; tokens 0: none */
    int chats;                          /* else the answer has the form of /v1/completions */
    char event[640]; int event_length;  /* the HTTP chunk of a token in the middle of the stream */
};

struct timer { int64_t due; int fd; uint32_t life; };

static struct connection *connections[MAX_FDS];
static struct timer heap[MAX_FDS];
static int timers, poller, requests;
static long logged, refused_bytes;
static struct token *tokens;
static char (*ids)[ID_LENGTH];
static int64_t *arrivals;
static int64_t first_ns, gap_ns, freeze_ns;
static long freeze_after = -1;
static int spread;

static void die(const char *what) { perror(what); exit(1); }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A binary heap of timers, the earliest on top. */

static void push(struct timer timer) {
    int i = timers++;
    for (int up; i > 0 && heap[up = (i - 1) / 2].due > timer.due; i = up) heap[i] = heap[up];
    heap[i] = timer;
}

static struct timer pop(void) {
    struct timer top = heap[0], last = heap[--timers];
    int i = 0;
    for (int down; (down = 2 * i + 1) < timers; i = down) {
        if (down + 1 < timers && heap[down + 1].due < heap[down].due) down++;
        if (heap[down].due >= last.due) break;
        heap[i] = heap[down];
    }
    heap[i] = last;
    return top;
}

/* What goes over the wire. */

static int chunk(char *out, const char *payload) { return sprintf(out, "%zx\r\n%s\r\n", strlen(payload), payload); }

static void event(char *out, int32_t request, const char *text, const char *finish) {
    sprintf(out, START "\"choices\":[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":%s}]}\n\n", request, text,
            finish);
}

static int role_piece(char *out, const struct connection *c) {
    char role[512];
    event(role, c->request, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "null");
    return chunk(out, role);
}

static int last_piece(char *out, const struct connection *c) {
    char last[512], usage[512];
    event(last, c->request, c->chats ? WORD : TEXT, "\"length\"");
    sprintf(usage,
            START "\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
            c->request, 100 + c->tokens, c->tokens);
    int length = chunk(out, last);
    length += chunk(out + length, usage);
    length += chunk(out + length, "data: [DONE]\n\n");
    return length + sprintf(out + length, "0\r\n\r\n");
}

static int piece(char *out, const struct connection *c) {
    int length = c->seq == 0 && c->chats ? role_piece(out, c) : 0;
    if (c->seq == c->tokens - 1) return length + last_piece(out + length, c);
    memcpy(out + length, c->event, c->event_length);
    return length + c->event_length;
}

/* Connections. */

static void hang_up(int fd) {
    struct connection *c = connections[fd];
    free(c->in);
    uint32_t life = c->life;
    memset(c, 0, sizeof *c);
    c->life = life + 1;
    close(fd);
}

/* Every send must be taken whole: a client that lets megabytes pile up is not being measured but drowned. */
static int send_all(int fd, const char *data, int length) {
    if (send(fd, data, length, MSG_NOSIGNAL) == length) return 1;
    refused_bytes += length;
    hang_up(fd);
    return 0;
}

static void log_token(struct token token) {
    if (logged == MAX_TOKENS) die("too many tokens for the log");
    tokens[logged++] = token;
}

/* All timers move alike, so the heap stays one. */
static void freeze(void) {
    for (int i = 0; i < timers; i++) heap[i].due += freeze_ns;
}

static void send_token(struct timer timer) {
    struct connection *c = connections[timer.fd];
    if (c->life != timer.life || !c->tokens) return;
    char data[4096];
    int length = piece(data, c), last = c->seq == c->tokens - 1;
    struct token token = {c->request, c->seq++, timer.due, now_ns(), 0};
    if (!send_all(timer.fd, data, length)) return;
    token.after = now_ns();
    log_token(token);
    if (last) c->tokens = 0;
    else push((struct timer){timer.due + gap_ns, timer.fd, timer.life});
    if (logged == freeze_after) freeze();
}

static const char *header(const char *head, const char *name) {
    const char *found = strcasestr(head, name);
    return found ? found + strlen(name) + strspn(found + strlen(name), " ") : NULL;
}

static int asked_tokens(const char *body) {
    const char *names[] = {"\"max_completion_tokens\":", "\"max_tokens\":"};
    for (int i = 0; i < 2; i++) {
        const char *found = strstr(body, names[i]);
        if (found) return atoi(found + strlen(names[i]));
    }
    return 16;
}

static int64_t first_due(int request) {
    int64_t due = now_ns() + first_ns;
    if (!spread) return (due / gap_ns + 1) * gap_ns;
    double phase = request * GOLDEN;
    return due + (int64_t)((phase - (int64_t)phase) * gap_ns);
}

static void start_stream(int fd, const char *head, const char *body) {
    static const char answer[] = "HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/event-stream\r\n"
                                 "transfer-encoding: chunked\r\n\r\n";
    struct connection *c = connections[fd];
    if (requests == MAX_REQUESTS) die("too many requests for the log");
    c->request = requests++;
    arrivals[c->request] = c->arrived;
    c->seq = 0;
    c->tokens = asked_tokens(body);
    c->chats = !strstr(head, "/v1/completions");
    const char *id = header(head, "\r\nx-request-id:");
    if (id) snprintf(ids[c->request], ID_LENGTH, "%.*s", (int)strcspn(id, "\r"), id);
    char text[512];
    event(text, c->request, c->chats ? WORD : TEXT, "null");
    c->event_length = chunk(c->event, text);
    if (send_all(fd, answer, sizeof answer - 1)) push((struct timer){first_due(c->request), fd, c->life});
}

static void answer_get(int fd) {
    static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\"}]}";
    char answer[512];
    int length = sprintf(answer, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                         sizeof models - 1, models);
    send_all(fd, answer, length);
}

/* Answers the request at the start of the buffer if it is whole; the answer to the one before must be finished. */
static void take_request(int fd) {
    struct connection *c = connections[fd];
    char *end = c->have ? strstr(c->in, "\r\n\r\n") : NULL;
    if (!end || c->tokens) return;
    *end = 0;
    const char *length = header(c->in, "\r\ncontent-length:");
    size_t whole = (end + 4 - c->in) + (length ? strtoul(length, NULL, 10) : 0);
    if (c->have < whole) { *end = '\r'; return; }
    uint32_t life = c->life;
    if (!strncmp(c->in, "POST", 4)) start_stream(fd, c->in, end + 4);
    else answer_get(fd);
    if (c->life != life) return;
    c->have -= whole;
    memmove(c->in, c->in + whole, c->have + 1);
}

/* The kernel's stamp, CLOCK_REALTIME ns: when the client handed the bytes over, however late this process reads. */
static int64_t stamp_ns(struct msghdr *message) {
    struct cmsghdr *note = CMSG_FIRSTHDR(message);
    if (!note || note->cmsg_type != SCM_TIMESTAMPNS) return now_ns();
    struct timespec t;
    memcpy(&t, CMSG_DATA(note), sizeof t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void read_some(int fd) {
    struct connection *c = connections[fd];
    if (c->room - c->have < 65536) c->in = realloc(c->in, c->room = 2 * c->room + 131072);
    char control[128];
    struct iovec to = {c->in + c->have, c->room - c->have - 1};
    struct msghdr message = {.msg_iov = &to, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) { hang_up(fd); return; }
    c->arrived = stamp_ns(&message);
    c->in[c->have += got] = 0;
    take_request(fd);
}

static void accept_all(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        if (fd >= MAX_FDS) { close(fd); continue; }
        if (!connections[fd]) connections[fd] = calloc(1, sizeof *connections[fd]);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        struct epoll_event watch = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &watch);
    }
}

/* The whole. */

static int listen_on_loopback(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(fd, (struct sockaddr *)&address, size) || listen(fd, 4096)) die("listen");
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &(int){1}, sizeof(int)); /* accepted sockets inherit it */
    getsockname(fd, (struct sockaddr *)&address, &size);
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static int stop_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_NONBLOCK);
}

static void serve(int listener, int stop) {
    struct epoll_event ready[64];
    for (;;) {
        for (int i = 0; i < 64 && timers && heap[0].due <= now_ns(); i++) send_token(pop());
        int64_t wait = timers ? heap[0].due - now_ns() : 1000000000;
        if (wait < 0) wait = 0;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        int count = epoll_pwait2(poller, ready, 64, &timeout, NULL);
        for (int i = 0; i < count; i++) {
            if (ready[i].data.fd == stop) return;
            if (ready[i].data.fd == listener) accept_all(listener);
            else read_some(ready[i].data.fd);
        }
    }
}

static void write_log(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tokens.bin", folder);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(tokens, sizeof *tokens, logged, file) != (size_t)logged || fclose(file)) die(path);
    snprintf(path, sizeof path, "%s/requests.txt", folder);
    if (!(file = fopen(path, "w"))) die(path);
    for (int i = 0; i < requests; i++) fprintf(file, "%ld %s\n", (long)arrivals[i], ids[i]);
    if (fclose(file)) die(path);
    if (refused_bytes) fprintf(stderr, "token_server: %ld bytes not taken by clients slow or gone\n", refused_bytes);
}

int main(int argc, char **argv) {
    if (argc != 5 && argc != 7) {
        fprintf(stderr, "usage: token_server FIRST_MS GAP_MS SPREAD LOG_FOLDER [FREEZE_AFTER FREEZE_MS]\n");
        return 2;
    }
    first_ns = atof(argv[1]) * 1e6;
    gap_ns = atof(argv[2]) * 1e6;
    spread = atoi(argv[3]);
    if (argc == 7) { freeze_after = atol(argv[5]); freeze_ns = atof(argv[6]) * 1e6; }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    tokens = mmap(NULL, MAX_TOKENS * sizeof *tokens, PROT_READ | PROT_WRITE, flags, -1, 0);
    ids = mmap(NULL, (size_t)MAX_REQUESTS * ID_LENGTH, PROT_READ | PROT_WRITE, flags, -1, 0);
    arrivals = mmap(NULL, MAX_REQUESTS * sizeof *arrivals, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (tokens == MAP_FAILED || ids == MAP_FAILED || arrivals == MAP_FAILED) die("mmap");
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1000);
    int stop = stop_signals();
    poller = epoll_create1(0);
    int listener = listen_on_loopback();
    int watched[] = {listener, stop};
    for (int i = 0; i < 2; i++) {
        struct epoll_event watch = {.events = EPOLLIN, .data.fd = watched[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, watched[i], &watch);
    }
    serve(listener, stop);
    write_log(argv[4]);
    return 0;
}
