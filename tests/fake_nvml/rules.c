/* What goes wrong: rules of the state file, applied to every call. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "state.h"

#define MAX_RULES 64
#define LINE 1024

typedef enum { FAIL, DELAY, HANG, CRASH, GARBAGE, SAY, BLIND, ACTIONS } action;
static const char *const words_of[] = {"err", "delay", "hang", "crash", "garbage", "say", "blind"};

typedef struct rule {
    char text[LINE]; /* the line itself: a rule that stays in the file keeps its counters */
    action action;
    char function[80];
    int gpu;         /* a board with its slices; -1: any */
    char device[96]; /* one board or slice alone; empty: any */
    int code;
    long microseconds, after, every, times;
    long upto, beyond; /* sessions up to this one alone, and later ones alone; -1: all */
    long calls, applied;
} rule;

static rule rules[MAX_RULES], former[MAX_RULES];
static int rules_known, former_known;

void forget_rules(void) {
    memcpy(former, rules, sizeof rules);
    former_known = rules_known;
    rules_known = 0;
}

void read_rule(const char *line, const char *what, const char *function) {
    action done = FAIL;
    while (done < ACTIONS && strcmp(words_of[done], what)) done++;
    if (done == ACTIONS || rules_known == MAX_RULES) return;
    rule *r = &rules[rules_known++];
    memset(r, 0, sizeof *r);
    snprintf(r->text, sizeof r->text, "%s", line);
    r->action = done;
    snprintf(r->function, sizeof r->function, "%s", function);
    char gpu[16];
    r->gpu = word(line, "gpu", gpu, sizeof gpu) && strcmp(gpu, "*") ? atoi(gpu) : -1;
    word(line, "device", r->device, sizeof r->device);
    r->code = (int)number(line, "code", NVML_UNKNOWN);
    r->microseconds = number(line, "us", 0);
    r->after = number(line, "after", 0);
    r->every = number(line, "every", 1);
    r->times = number(line, "times", -1);
    r->upto = number(line, "upto", -1);
    r->beyond = number(line, "beyond", -1);
    for (int i = 0; i < former_known; i++)
        if (!strcmp(former[i].text, r->text)) *r = former[i];
}

static bool concerns(const rule *r, const char *function, const device *where) {
    size_t n = strlen(r->function);
    bool prefix = n > 0 && r->function[n - 1] == '*';
    if (r->upto >= 0 && !session_is_up_to(r->upto)) return false;
    if (r->beyond >= 0 && session_is_up_to(r->beyond)) return false;
    if (prefix ? strncmp(r->function, function, n - 1) : strcmp(r->function, function)) return false;
    int board = !where ? -1 : where->parent < 0 ? where->index : where->parent;
    if (r->gpu >= 0 && r->gpu != board) return false;
    return !r->device[0] || (where && !strcmp(r->device, where->uuid));
}

/* Count this call against the rule; whether the rule acts on it. */
static bool acts(rule *r) {
    r->calls++;
    if (r->calls <= r->after || (r->every > 1 && r->calls % r->every)) return false;
    if (r->times >= 0 && r->applied >= r->times) return false;
    r->applied++;
    return true;
}

static bool stands(const char *text) {
    for (int i = 0; i < rules_known; i++)
        if (!strcmp(rules[i].text, text)) return true;
    return false;
}

/* Hang until the rule is gone; a file beside the registry's holders says so meanwhile. */
static void hang_while_ruled(const rule *r) {
    char text[LINE], sign[4096];
    snprintf(text, sizeof text, "%s", r->text);
    snprintf(sign, sizeof sign, "%s/.hanging-%d", getenv("GPUGATE_STANDIN_PROCS"), (int)getpid());
    FILE *file = fopen(sign, "w");
    if (file) fclose(file);
    const struct timespec moment = {0, 10 * 1000 * 1000};
    while (stands(text)) {
        nanosleep(&moment, NULL);
        refresh_state();
    }
    unlink(sign);
}

verdict judge(const char *function, const device *where) {
    verdict v = {0, false, false};
    for (int i = 0; i < rules_known; i++) {
        rule *r = &rules[i];
        if (!concerns(r, function, where) || !acts(r)) continue;
        switch (r->action) {
            case FAIL: v.code = r->code; break;
            case GARBAGE: v.garbage = true; break;
            case BLIND: v.blind = true; break;
            case CRASH: raise(SIGSEGV); break;
            case SAY:
                puts("NVRM: a driver that talks");
                fflush(stdout);
                break;
            case HANG: hang_while_ruled(r); break;
            case DELAY: {
                struct timespec t = {r->microseconds / 1000000, r->microseconds % 1000000 * 1000};
                nanosleep(&t, NULL);
                break;
            }
            default: break;
        }
    }
    return v;
}
