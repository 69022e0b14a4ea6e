# A build-id in the last segment, as patchelf leaves it.
        .section .note.late, "aw", @note
        .p2align 2
        .long 4, 20, 3
        .asciz "GNU"
        .ascii "twenty bytes of it.."
        .section .note.GNU-stack, "", @progbits
