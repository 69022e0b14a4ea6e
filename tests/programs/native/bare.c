// Compiled without unwind tables: what a stripped driver or hand-written code looks like to an unwinder.
#define NOINLINE __attribute__((noinline, noclone))

NOINLINE long bare_leaf(long count) {
  volatile long sum = 0;
  for (long i = 0; i < count; i++) sum += i;
  return sum;
}

// Keeps values across the call, so that it saves registers; its frame has no frame pointer.
NOINLINE long bare_caller(long (*callback)(long), long a, long b, long c) {
  long kept = a * 3 + b, other = b * 5 + c;
  long result = callback(a) + callback(b);
  return result + kept * c + other * a;
}

// A frame of unknown size, realigned: found again by a frame pointer or a slot.
NOINLINE long bare_realigned(long (*callback)(long), long size) {
  __attribute__((aligned(128))) volatile char aligned[128];
  volatile char *room = __builtin_alloca(size);
  aligned[0] = room[0] = (char)size;
  return callback(size) + aligned[0] + room[0];
}
