// Rows of attention for heads of 128 channels and more.
#define KVCC_PART(head_dim) ((head_dim) >= 128)
#include "tests/kernels/emulated/attention_test.h"
