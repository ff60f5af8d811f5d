// The part of OpenMP's runtime that the kernels call, made of std::thread, for ThreadSanitizer.
//
// GCC's own runtime synchronises with system calls that ThreadSanitizer does not see, so that it
// reports a race wherever a thread reads what was written before a loop. Threads that are created
// and joined, and a counter with a lock, it understands; nothing has to be suppressed.

#include <mutex>
#include <thread>
#include <vector>

namespace {

struct Team {
    long threads = 1, next = 0, end = 0;
    std::mutex lock;
};
thread_local Team *team = nullptr;
thread_local int index = 0;

bool take(long *from, long *to) {
    std::lock_guard<std::mutex> held(team->lock);
    if (team->next >= team->end) return false;
    *from = team->next++, *to = *from + 1;
    return true;
}

}  // namespace

extern "C" {

int omp_get_thread_num() { return index; }
int omp_get_num_threads() { return team ? static_cast<int>(team->threads) : 1; }

void GOMP_parallel(void (*run)(void *), void *data, unsigned threads, unsigned) {
    Team own;
    own.threads = threads ? threads : 1;
    own.end = -1;
    auto work = [&](int number) {
        team = &own, index = number;
        run(data);
        team = nullptr, index = 0;
    };
    std::vector<std::thread> others;
    for (int number = 1; number < own.threads; number++) others.emplace_back(work, number);
    work(0);
    for (std::thread &other : others) other.join();
}

bool GOMP_loop_nonmonotonic_dynamic_start(long start, long end, long, long, long *from, long *to) {
    {
        // The first thread that arrives says how far the loop goes.
        std::lock_guard<std::mutex> held(team->lock);
        if (team->end == -1) team->next = start, team->end = end;
    }
    return take(from, to);
}

bool GOMP_loop_nonmonotonic_dynamic_next(long *from, long *to) { return take(from, to); }

void GOMP_loop_end_nowait() {}
}
