/* Loops over frames without the lock of the interpreter. loops.py calls them and explains why.

   No header of FFmpeg or Python is needed. FFmpeg's functions are passed as addresses (`loops_bind`). Its structures and
   PyAV's objects are plain memory, of which only the fields below are used. loops.py verifies their offsets before the
   first call. */
#include <stdint.h>
#include <stddef.h>

#ifndef LOOPS_SOURCE
#define LOOPS_SOURCE 0 /* the checksum of this file, set by hatch_build.py */
#endif

unsigned loops_source(void) { return LOOPS_SOURCE; }

typedef struct { /* first fields of an AVPacket */
    void *buf;
    int64_t pts, dts;
    const uint8_t *data;
    int size;
} Packet;

typedef struct { /* first fields of an AVFrame */
    uint8_t *data[8];
    int linesize[8];
    uint8_t **extended_data;
    int width, height, nb_samples, format;
} Frame;

typedef struct { /* an object of PyAV: reference count, type, methods, and the FFmpeg structure that it wraps */
    void *head[3];
    void *wrapped;
} Object;

static int (*send_packet)(void *, const Packet *);
static int (*receive_frame)(void *, Frame *);
static Packet *(*packet_alloc)(void);
static void (*packet_free)(Packet **);
static void (*frame_unref)(Frame *);
static int (*scale)(void *, uint8_t *const *, const int *, int, int, uint8_t *const *, const int *);

void loops_bind(void *send, void *receive, void *alloc, void *release, void *unref, void *scaler) {
    send_packet = (int (*)(void *, const Packet *))send;
    receive_frame = (int (*)(void *, Frame *))receive;
    packet_alloc = (Packet * (*)(void)) alloc;
    packet_free = (void (*)(Packet **))release;
    frame_unref = (void (*)(Frame *))unref;
    scale = (int (*)(void *, uint8_t *const *, const int *, int, int, uint8_t *const *, const int *))scaler;
}

/* Count the packets, from the first of `count` on, that hold nothing but coded frames and data without effect on others:
   NAL units of H.264 or HEVC, each after its length in `prefix` bytes. The count ends at the first packet with a
   parameter set, without a coded frame, or whose lengths do not fill it. */
int loops_plain(const uint8_t *data, int64_t base, const int64_t *offset, const int32_t *size, int count, int prefix, int hevc) {
    for (int i = 0; i < count; i++) {
        const uint8_t *at = data + (offset[i] - base), *end = at + size[i];
        int coded_frames = 0;
        while (end - at > prefix) {
            int64_t length = 0;
            for (int byte = 0; byte < prefix; byte++) length = length << 8 | *at++;
            if (length == 0 || length > end - at) return i;
            int kind = hevc ? at[0] >> 1 & 63 : at[0] & 31;
            if (hevc ? kind >= 32 && kind <= 34 : kind == 7 || kind == 8 || kind == 13 || kind == 15) return i;
            coded_frames += hevc ? kind < 32 : kind >= 1 && kind <= 5;
            at += length;
        }
        if (at != end || !coded_frames) return i;
    }
    return count;
}

/* Feed packets to a decoder and collect its frames in output order.

   There are `count` packets: size[i] bytes at data + offset[i] - base, with time pts[i] (FFmpeg copies and pads them).
   `frames` are `room` empty frames of the expected pixel format. fed[0] is set to the number of packets fed without an
   error, got[0] to the number of frames filled. Returns 0; 1 where `room` is used up (call again for the rest); -1 where
   packet fed[0] could not be fed or decoded, or a frame of another format came out, which is dropped. */
int loops_decode(Object *context, const uint8_t *data, int64_t base, const int64_t *offset, const int32_t *size, const int32_t *pts,
                 int count, Object **frames, int room, int again, int *fed, int *got) {
    Packet *packet = packet_alloc();
    int result = packet ? 0 : -1, sent = 0, status, format;
    *got = 0;
    while (result == 0) {
        Frame *frame = frames[*got]->wrapped;
        format = frame->format;
        status = receive_frame(context->wrapped, frame);
        if (status == 0 && frame->format == format) {
            result = ++*got == room;
        } else if (status == again) { /* the decoder needs the next packet */
            frame->format = format;
            if (sent == count) break;
            packet->data = data + (offset[sent] - base);
            packet->size = size[sent];
            packet->pts = pts[sent];
            if (send_packet(context->wrapped, packet) < 0) {
                result = -1;
                break;
            }
            sent++;
        } else {
            result = -1;
            sent -= sent > 0;
            frame_unref(frame); /* a stale format would make the next frame decode wrongly */
            frame->format = format;
        }
    }
    if (packet) {
        packet->data = NULL; /* without `buf` FFmpeg does not own this memory */
        packet->size = 0;
        packet_free(&packet);
    }
    *fed = sent;
    return result;
}

/* Convert frames of one pixel layout into planes of red, green and blue, each frame from its address `to[i]` on. Frames
   marked in `done` are released and keep their pixel format, to be recycled. Returns the number of frames converted. */
int loops_convert(void *scaler, Object **frames, uint8_t **to, const uint8_t *done, int count, int height, int width) {
    const int lines[4] = {width, width, width, 0};
    ptrdiff_t channel = (ptrdiff_t)height * width;
    for (int i = 0; i < count; i++) {
        Frame *frame = frames[i]->wrapped;
        uint8_t *planes[4] = {to[i] + channel, to[i] + 2 * channel, to[i], NULL}; /* green, blue, red */
        if (scale(scaler, frame->data, frame->linesize, 0, height, planes, lines) != height) return i;
        if (done[i]) {
            int format = frame->format;
            frame_unref(frame);
            frame->format = format;
        }
    }
    return count;
}
