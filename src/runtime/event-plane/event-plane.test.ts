import { eventPlaneContract } from "./event-plane.contract.ts";
import { MemoryEventBus, MemoryEventTransport } from "./transports/memory.ts";
import { ZmqEventTransport } from "./transports/zmq.ts";

const bus = new MemoryEventBus();

eventPlaneContract("the memory event plane", {
  makeTransport: async () => new MemoryEventTransport(bus),
  foreignAddress: "tcp://127.0.0.1:1",
});

eventPlaneContract("the zmq event plane", {
  makeTransport: () => ZmqEventTransport.open(),
  foreignAddress: "memory-events://nobody",
});
