// Helper threads that join a caller for one batch of independent items.
//
// The caller works too and never waits for a helper that the scheduler has not started: it waits only for items already
// claimed. Helpers are asked for idle cores only, so that on a busy machine a batch takes what one thread needs.
// Decision: std::thread and not OpenMP. OpenMP's team is shared with torch, and its members wait for the slowest of
// them. On contended cores that costs an order of magnitude.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace acm {

class Pool {
  public:
    // A child of fork() inherits the object but not its threads, hence one pool per process id. The pool is never
    // destroyed: sleeping threads die with the process, and no static destructor races with them.
    static Pool& of_process() {
        static std::mutex guard;
        static Pool* pool = nullptr;
        static pid_t owner = 0;
        std::lock_guard<std::mutex> lock(guard);
        if (pool == nullptr || owner != getpid()) {
            pool = new Pool();
            owner = getpid();
        }
        return *pool;
    }

    // Runs item(0) ... item(num_items - 1), each once, on at most `num_threads` threads. `cpus`: where helpers may run;
    // empty: wherever the thread that started them may (which is one core when an OpenMP runtime pinned that thread).
    void run(int64_t num_items, int num_threads, const std::vector<int>& cpus,
             const std::function<void(int64_t)>& item) {
        std::lock_guard<std::mutex> one_batch(batch_);
        Batch batch{&item, num_items};
        int num_helpers = static_cast<int>(std::min<int64_t>(num_threads, num_items)) - 1;
        if (num_helpers > 0 && !cpus.empty())
            num_helpers = std::min(num_helpers, num_idle(static_cast<int>(cpus.size())));
        if (num_helpers > 0) open(&batch, num_helpers, cpus);
        batch.work();
        if (num_helpers > 0) close();
    }

  private:
    // How many of `num_cpus` cores nobody wants now, by the kernel's count of runnable threads (which holds the caller).
    // A helper that shares its core may lose it with an item in its hands, and the caller then waits for time slices of
    // other processes: six times as long as a short move takes on one thread. Unknown counts as idle.
    static int num_idle(int num_cpus) {
        const int file = ::open("/proc/loadavg", O_RDONLY | O_CLOEXEC);  // "0.20 0.18 0.12 1/80 11206": 1 is runnable
        if (file < 0) return num_cpus;
        char text[64] = {};
        const ssize_t length = read(file, text, sizeof text - 1);
        ::close(file);
        int num_runnable = 1;
        if (length <= 0 || std::sscanf(text, "%*s %*s %*s %d/", &num_runnable) != 1) return num_cpus;
        return std::max(0, num_cpus - num_runnable);
    }

    struct Batch {
        const std::function<void(int64_t)>* item;
        int64_t num_items;
        std::atomic<int64_t> next{0};

        Batch(const std::function<void(int64_t)>* work_item, int64_t count) : item(work_item), num_items(count) {}
        void work() {
            for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < num_items;) (*item)(i);
        }
    };

    void open(Batch* batch, int num_helpers, const std::vector<int>& cpus) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            while (num_started_ < num_helpers) {
                std::thread([this] { serve(); }).detach();
                ++num_started_;
            }
            cpus_ = cpus;
            current_ = batch;
            places_ = num_helpers;
        }
        wake_.notify_all();
    }

    void close() {
        std::unique_lock<std::mutex> lock(mutex_);
        current_ = nullptr;
        places_ = 0;
        idle_.wait(lock, [this] { return num_active_ == 0; });
    }

    void serve() {
        std::vector<int> bound;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return current_ != nullptr && places_ > 0; });
            Batch* batch = current_;
            --places_;
            ++num_active_;
            const std::vector<int> cpus = cpus_;
            lock.unlock();
            if (cpus != bound) bind(bound = cpus);
            batch->work();
            lock.lock();
            if (--num_active_ == 0) idle_.notify_one();
        }
    }

    static void bind(const std::vector<int>& cpus) {
        if (cpus.empty()) return;
        cpu_set_t set;
        CPU_ZERO(&set);
        for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
        // A cpu that has gone offline leaves the helper where it is: slower, never wrong.
        pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }

    std::mutex batch_;
    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    std::vector<int> cpus_;
    Batch* current_ = nullptr;
    int places_ = 0, num_active_ = 0, num_started_ = 0;
};

}  // namespace acm
