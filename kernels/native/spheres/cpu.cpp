namespace lumigrad { void placeholder(); }
