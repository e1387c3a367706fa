// SPDX-License-Identifier: Apache-2.0
// fork, exec and pipes.
#include "conformance/runner/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <system_error>

namespace dropless::conformance {
namespace {

constexpr std::size_t longest_reply = 64u << 20;

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw std::system_error(errno, std::generic_category(), "pipe");
    }
    read_end = ends[0];
    write_end = ends[1];
  }
};

void shut(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

// Between fork and exec: async-signal-safe calls only. Descriptors are first moved out of the way
// of the numbers they shall get.
[[noreturn]] void become(const char* program, char* const* arguments, const Pipe& requests,
                         const Pipe& replies, const Pipe& output, pid_t parent,
                         ProcessGroup group) {
  if (group == ProcessGroup::own) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent went away before the line above
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM, SIGHUP}) {
    std::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const rlimit no_core{0, 0};  // crashes are expected; their dumps would fill the disk
  setrlimit(RLIMIT_CORE, &no_core);
  const int request = fcntl(requests.read_end, F_DUPFD, 16);
  const int reply = fcntl(replies.write_end, F_DUPFD, 16);
  const int printed = fcntl(output.write_end, F_DUPFD, 16);
  const int nothing = open("/dev/null", O_RDONLY);
  if (request < 0 || reply < 0 || printed < 0 || nothing < 0) _exit(127);
  dup2(nothing, STDIN_FILENO);
  dup2(printed, STDOUT_FILENO);
  dup2(printed, STDERR_FILENO);
  dup2(request, request_descriptor);
  dup2(reply, reply_descriptor);
  close_range(reply_descriptor + 1, ~0u, 0);
  execv(program, arguments);
  _exit(127);
}

void never_wait(int descriptor) {
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

// Appends what is there; false at the end of the stream.
bool drain(int descriptor, std::string& into, std::size_t most) {
  char chunk[1 << 14];
  for (std::size_t taken = 0; taken < most;) {
    const ssize_t count = read(descriptor, chunk, sizeof chunk);
    if (count > 0) {
      into.append(chunk, static_cast<std::size_t>(count));
      taken += static_cast<std::size_t>(count);
    } else if (count == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
  return true;
}

}  // namespace

Child::Child(const std::string& program, const std::vector<std::string>& arguments,
             ProcessGroup group)
    : group_(group) {
  Pipe requests, replies, output;
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(program.c_str(), argv.data(), requests, replies, output, parent, group_);
  const int error = errno;
  shut(requests.read_end), shut(replies.write_end), shut(output.write_end);
  requests_ = requests.write_end, replies_ = replies.read_end, output_ = output.read_end;
  if (pid_ < 0) {
    shut(requests_), shut(replies_), shut(output_);
    throw std::system_error(error, std::generic_category(), "fork");
  }
  // In both processes, so that neither has to wait for the other.
  if (group_ == ProcessGroup::own) setpgid(pid_, pid_);
  never_wait(replies_), never_wait(output_), never_wait(requests_);
}

Child::~Child() {
  finish();
  shut(requests_), shut(replies_), shut(output_);
}

bool Child::send(std::string_view line) {
  std::string text(line);
  text += '\n';
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = write(requests_, text.data() + sent, text.size() - sent);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      return false;  // gone, or a full pipe: a request is far shorter than a pipe
    }
  }
  return true;
}

std::vector<std::string> Child::take_replies() {
  std::vector<std::string> lines;
  if (replies_ < 0) return lines;
  const bool open = drain(replies_, partial_, longest_reply);
  std::size_t begin = 0;
  for (std::size_t end = partial_.find('\n'); end != std::string::npos;
       end = partial_.find('\n', begin)) {
    lines.push_back(partial_.substr(begin, end - begin));
    begin = end + 1;
  }
  partial_.erase(0, begin);
  if (partial_.size() > longest_reply) kill_group();
  if (!open) shut(replies_);
  return lines;
}

std::string Child::take_output() {
  std::string text;
  if (output_ >= 0 && !drain(output_, text, 1u << 20)) shut(output_);
  return text;
}

std::optional<int> Child::ended() {
  siginfo_t info{};
  if (!status_ && waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_) {
    finish();
  }
  return status_;
}

void Child::kill_group() {
  if (!status_) kill(group_ == ProcessGroup::own ? -pid_ : pid_, SIGKILL);
}

void Child::close_requests() {
  shut(requests_);
}

// The group is killed before its leader is reaped: until then nobody else can have its number.
int Child::finish() {
  if (status_) return *status_;
  kill_group();
  kill(pid_, SIGKILL);  // in case it left its group
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  status_ = status;
  return status;
}

std::string how_it_ended(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const char* short_name = sigabbrev_np(WTERMSIG(wait_status));
    return short_name != nullptr ? fmt::format("SIG{}", short_name)
                                 : fmt::format("signal {}", WTERMSIG(wait_status));
  }
  return fmt::format("exit({})", WEXITSTATUS(wait_status));
}

std::int64_t resident_bytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  std::int64_t total = 0, resident = 0;
  if (!(file >> total >> resident)) return 0;
  std::int64_t bytes = resident * sysconf(_SC_PAGESIZE);
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", pid));
  for (pid_t child = 0; children >> child;) bytes += resident_bytes(child);
  return bytes;
}

}  // namespace dropless::conformance
